"""SQL filter expressions over the properties of a message (wire contract 5.4): text in, one function out. Pure.

`words` splits the text, `grammar` parses it, and `logic` makes the function from closures, never from generated code.
Length, number of terms and depth are bounded.
"""

from evenq.filters.grammar import SqlFilter, sql_filter
from evenq.filters.words import DEPTH_MAX, EXPRESSION_BYTES_MAX, TERMS_MAX

__all__ = ["DEPTH_MAX", "EXPRESSION_BYTES_MAX", "TERMS_MAX", "SqlFilter", "sql_filter"]
