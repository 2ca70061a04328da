"""Scanner of SQL filters: from text to tokens with positions, in one pass and within limits.

Keywords are matched in upper and lower case, names of properties exactly. Every error contains the column (from 1), the
text found there and a correct example.
"""

from __future__ import annotations

import re

from lark import Token

from evenq.errors import IllegalFilterExpression

EXPRESSION_BYTES_MAX = 8 << 10  # UTF-8
TERMS_MAX = 1024  # names and values in one expression
DEPTH_MAX = 64  # parentheses and NOTs inside each other

_KEYWORDS = {
    "AND": "_AND", "OR": "_OR", "NOT": "_NOT", "IS": "_IS", "NULL": "_NULL", "IN": "_IN", "BETWEEN": "_BETWEEN",
    "TRUE": "TRUE", "FALSE": "FALSE", "CONTAINS": "CONTAINS", "STARTSWITH": "CONTAINS", "ENDSWITH": "CONTAINS",
}  # fmt: skip
_SIGNS = {"(": "_LPAR", ")": "_RPAR", ",": "_COMMA"}
_TERMS = {"NAME", "STRING", "NUMBER", "TRUE", "FALSE"}
_NUMBER_MAX = 64

_WORD = re.compile(
    r"""\s+
    | (?P<NAME>[^\W\d][\w$.]* | \$[\w$.]*)
    | (?P<NUMBER>[+-]?\s*(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?(?![\w$.]))
    | (?P<STRING>'(?:[^']|'')*+')
    | (?P<COMPARE><>|<=|>=|=(?!=)|<|>)
    | (?P<SIGN>[(),])""",
    re.VERBOSE,
)
_ADVICE = (
    ("'", "a string begins here and never ends; close it with ', and write '' for a quote inside: name = 'O''Brien'"),
    ('"', "strings take single quotes: region = 'eu'"),
    ("!=", "'not equal' is written <>: region <> 'eu'"),
    ("==", "'equal' is written =: region = 'eu'"),
    ("&&", "'and' is written AND: region = 'eu' AND amount > 10"),
    ("||", "'or' is written OR: region = 'eu' OR amount > 10; for tags, give a TAG expression"),
    ("!", "'not' is written NOT: NOT (region = 'eu')"),
    ("+", "there is no arithmetic; compare a property with a value: amount > 10"),
    ("-", "there is no arithmetic, and names hold letters, digits, '_', '$' and '.': order_id = '7'"),
    ("*", "there is no arithmetic and no '*'; for every message, give the TAG expression '*'"),
    ("/", "there is no arithmetic; compare a property with a value: amount > 10"),
)


def problem(column: int, detail: str) -> IllegalFilterExpression:
    """Returns the error at `column` (from 1)."""
    return IllegalFilterExpression(f"the SQL filter is wrong at column {column}: {detail}")


def scan(text: str) -> list[Token]:
    """Returns all tokens in order. Raises IllegalFilterExpression."""
    size = len(text.encode(errors="replace"))
    if size > EXPRESSION_BYTES_MAX:
        raise IllegalFilterExpression(
            f"the SQL filter has {size} bytes, the limit is {EXPRESSION_BYTES_MAX}; shorten it, or filter by tag"
        )
    words: list[Token] = []
    terms = depth = at = 0
    while at < len(text):
        match = _WORD.match(text, at)
        if match is None:
            raise problem(at + 1, _advice(text, at))
        if match.lastgroup is not None:
            word = _word(match.lastgroup, match[0], at)
            depth += (word.type == "_LPAR") - (word.type == "_RPAR")
            terms += word.type in _TERMS
            if depth > DEPTH_MAX:
                raise problem(at + 1, f"more than {DEPTH_MAX} parentheses are open; nest less")
            if terms > TERMS_MAX:
                raise problem(at + 1, f"more than {TERMS_MAX} names and values; shorten it, or filter by tag")
            words.append(word)
        at = match.end()
    return words


def _word(kind: str, text: str, at: int) -> Token:
    if kind == "NAME":
        kind = _KEYWORDS.get(text.upper(), kind)
        if kind == "NAME" and text.upper() == "LIKE":
            raise problem(at + 1, "LIKE is not known; use CONTAINS, STARTSWITH or ENDSWITH: name STARTSWITH 'ab'")
    elif kind == "SIGN":
        kind = _SIGNS[text]
    elif kind == "NUMBER" and len(text) > _NUMBER_MAX:
        raise problem(at + 1, f"a number of {len(text)} characters; the limit is {_NUMBER_MAX}")
    return Token(kind, text, start_pos=at)


def _advice(text: str, at: int) -> str:
    for sign, advice in _ADVICE:
        if text.startswith(sign, at):
            return advice
    if text[at].isdigit() or text[at] == ".":
        return f"{text[at : at + 20]!r} is not a number; write 10, -3, 2.5 or 1e6, and strings as '10x'"
    return f"{text[at]!r} is not known; compare a property with a value: region = 'eu' AND amount > 10"
