"""The grammar of SQL filters and the parser that turns an expression into its function.

LALR(1): the time is proportional to the text. The tables of the parser are made once, for the first SQL filter.
Functions are built while the parser reads, so no code walks a tree or recurses over the user's text.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from lark import Lark, Token, Transformer, UnexpectedToken, v_args
from lark.lexer import Lexer
from lark.parsers.lalr_interactive_parser import InteractiveParser

from evenq.errors import IllegalFilterExpression
from evenq.filters import logic
from evenq.filters.logic import Predicate, Value
from evenq.filters.words import DEPTH_MAX, problem, scan

GRAMMAR = r"""
start: disjunction
?disjunction: conjunction (_OR conjunction)*           -> any_of
?conjunction: negation (_AND negation)*                -> all_of
?negation: predicate
    | _NOT negation                                    -> negate
?predicate: _LPAR disjunction _RPAR                    -> nested
    | truth                                            -> constant
    | value COMPARE value                              -> compare
    | value _BETWEEN value _AND value                  -> between
    | value _NOT _BETWEEN value _AND value             -> not_between
    | value _IN _LPAR literals _RPAR                   -> one_of
    | value _NOT _IN _LPAR literals _RPAR              -> not_one_of
    | NAME _IS _NULL                                   -> is_null
    | NAME _IS _NOT _NULL                              -> is_not_null
    | value CONTAINS STRING                            -> text_test
    | value _NOT CONTAINS STRING                       -> not_text_test
literals: literal (_COMMA literal)*
?value: NAME                                           -> property
    | literal
?literal: STRING                                       -> text
    | NUMBER                                           -> number
    | truth
truth: TRUE | FALSE
%declare _AND _OR _NOT _IS _NULL _IN _BETWEEN _LPAR _RPAR _COMMA
%declare NAME STRING NUMBER TRUE FALSE COMPARE CONTAINS
"""

_A_VALUE = "a property or a value"
_SAID = {
    "NAME": _A_VALUE, "STRING": "a string in single quotes", "NUMBER": "a number", "TRUE": "TRUE", "FALSE": "FALSE",
    "COMPARE": "= <> < <= > >=", "CONTAINS": "CONTAINS, STARTSWITH or ENDSWITH", "_LPAR": "'('", "_RPAR": "')'",
    "_COMMA": "','", "$END": "the end",
}  # fmt: skip
_ORDER = ("NAME", "COMPARE", "STRING", "NUMBER", "TRUE", "FALSE", "_IN", "_BETWEEN", "_IS", "CONTAINS", "_AND", "_OR")


@dataclass(frozen=True, slots=True)
class SqlFilter:
    text: str
    names: frozenset[str]
    """Properties that it reads."""
    evaluate: Predicate
    """Returns True, False or None (null) for properties. A message passes the filter if it is True."""


def sql_filter(text: str) -> SqlFilter:
    """Parses an expression such as `region = 'eu' AND amount > 10`. Raises IllegalFilterExpression with the column."""
    words = scan(text)
    if not words:
        raise IllegalFilterExpression("the SQL filter is empty; write for example region = 'eu' AND amount > 10")
    reader = _parser().parse_interactive()
    last = Token("$END", "", start_pos=len(text))
    for word in [*words, last]:
        try:
            result = reader.feed_token(word)
        except UnexpectedToken:
            raise _unexpected(word, _accepted(reader)) from None
        except ValueError as error:  # from `logic`, at the end of what it is about
            raise problem((word.start_pos or 0) + 1, f"before it, {error}") from None
    assert isinstance(result, _Node)
    names = frozenset(str(word) for word in words if word.type == "NAME")
    return SqlFilter(text, names, result.test)


class _Node(NamedTuple):
    test: Predicate
    depth: int


@v_args(inline=True)
class _Building(Transformer[Token, object]):
    """Called by the parser at each reduction; keeps nothing."""

    def start(self, node: _Node) -> _Node:
        return node

    def any_of(self, *nodes: _Node) -> _Node:
        return nodes[0] if len(nodes) == 1 else _over(nodes, logic.any_of([node.test for node in nodes]))

    def all_of(self, *nodes: _Node) -> _Node:
        return nodes[0] if len(nodes) == 1 else _over(nodes, logic.all_of([node.test for node in nodes]))

    def negate(self, node: _Node) -> _Node:
        return _over((node,), logic.negate(node.test))

    def nested(self, node: _Node) -> _Node:
        return _over((node,), node.test)

    def constant(self, value: Value) -> _Node:
        return _Node(logic.constant(bool(value.literal)), 1)

    def compare(self, left: Value, sign: Token, right: Value) -> _Node:
        return _Node(logic.compare(left, str(sign), right), 1)

    def between(self, value: Value, low: Value, high: Value) -> _Node:
        return _Node(logic.all_of([logic.compare(value, ">=", low), logic.compare(value, "<=", high)]), 1)

    def not_between(self, value: Value, low: Value, high: Value) -> _Node:
        return _Node(logic.negate(self.between(value, low, high).test), 1)

    def one_of(self, value: Value, literals: list[Value]) -> _Node:
        return _Node(logic.one_of(value, [one.literal for one in literals]), 1)

    def not_one_of(self, value: Value, literals: list[Value]) -> _Node:
        return _Node(logic.negate(self.one_of(value, literals).test), 1)

    def is_null(self, name: Token) -> _Node:
        return _Node(logic.is_null(str(name)), 1)

    def is_not_null(self, name: Token) -> _Node:
        return _Node(logic.negate(logic.is_null(str(name))), 1)

    def text_test(self, value: Value, word: Token, text: Token) -> _Node:
        return _Node(logic.text_test(value, word.upper(), _unquoted(text)), 1)

    def not_text_test(self, value: Value, word: Token, text: Token) -> _Node:
        return _Node(logic.negate(self.text_test(value, word, text).test), 1)

    def literals(self, *values: Value) -> list[Value]:
        return list(values)

    def property(self, name: Token) -> Value:
        return Value(name=str(name))

    def text(self, text: Token) -> Value:
        return Value(literal=_unquoted(text))

    def number(self, text: Token) -> Value:
        number = logic.number("".join(text.split()))
        if number is None:
            raise ValueError(f"{text} is not a number")
        return Value(literal=number)

    def truth(self, word: Token) -> Value:
        return Value(literal=word.type == "TRUE")


class _NoLexer(Lexer):
    """`words.scan` feeds the parser."""

    def __init__(self, _: object) -> None: ...

    def lex(self, *_: object) -> object:  # type: ignore[override] # older and newer versions hand in other things
        raise NotImplementedError("nothing is parsed from text here: each parse gets its tokens from `words.scan`")


@cache
def _parser() -> Lark:
    return Lark(GRAMMAR, parser="lalr", lexer=_NoLexer, transformer=_Building())


def _accepted(reader: InteractiveParser) -> set[str]:
    return set(reader.accepts())  # type: ignore[no-untyped-call] # lark has no types there


def _over(nodes: tuple[_Node, ...], test: Predicate) -> _Node:
    depth = 1 + max(node.depth for node in nodes)
    if depth > DEPTH_MAX:
        raise ValueError(f"more than {DEPTH_MAX} parentheses and NOTs are inside each other; nest less")
    return _Node(test, depth)


def _unquoted(text: str) -> str:
    return text[1:-1].replace("''", "'")


def _unexpected(word: Token, expected: set[str]) -> IllegalFilterExpression:
    actual = "the end" if word.type == "$END" else repr(str(word)[:40])
    known = [*(name for name in _ORDER if name in expected), *sorted(expected.difference(_ORDER))]
    if "NAME" in expected:
        known = [name for name in known if name not in {"STRING", "NUMBER", "TRUE", "FALSE"}]
    said = list(dict.fromkeys(_SAID.get(name, name.lstrip("_")) for name in known))
    detail = f"found {actual}, expected {' or '.join(said)}"
    if word.type == "_NULL":
        fix = "compare with null by IS: region IS NULL, or region IS NOT NULL"
    elif word.startswith(("+", "-")) and "NUMBER" not in expected:
        fix = "there is no arithmetic; compare a property with a value: amount > 10"
    elif "_COMMA" in expected:
        fix = "for example region IN ('eu', 'us')"
    elif "COMPARE" in expected:
        fix = "for example region = 'eu', or region IS NOT NULL"
    elif word.type == "_RPAR":
        fix = "one ')' too many, or something is missing before it"
    elif word.type == "$END" and "_RPAR" in expected:
        fix = "a '(' is still open: (region = 'eu' OR region = 'us') AND amount > 10"
    else:
        fix = "for example region = 'eu' AND amount > 10"
    return problem((word.start_pos or 0) + 1, f"{detail}; {fix}")
