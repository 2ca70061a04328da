"""SQL filter expressions over the properties of a message (wire contract 5.4): text in, one function out.

Used by the broker. `words` cuts the text, `grammar` says what a sentence is, `logic` makes the function: closures over
closures, never code from the user's text. Bounded on every side: length, words, depth. Pure.
"""

from evenq.filters.grammar import SqlFilter, sql_filter
from evenq.filters.words import DEPTH_MAX, EXPRESSION_BYTES_MAX, TERMS_MAX

__all__ = ["DEPTH_MAX", "EXPRESSION_BYTES_MAX", "TERMS_MAX", "SqlFilter", "sql_filter"]
