"""Checks of the functions that users pass, in the constructors of both faces.

Without them, a listener that cannot be called would fail for each message, far from the line with the mistake. A
function that passes accepts its arguments, and its result is used: a coroutine that is never awaited, or a generator
that never runs, would count as success. Annotations are compared, too, as far as they name classes: a listener that is
written for one message gets a list.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable
from functools import partial
from typing import Any

from evenq.errors import BadRequest


def check_function(
    name: str, function: object, *arguments: str, items: type | None = None, awaited_by: str = ""
) -> None:
    """Raises BadRequest, with the fix, if the function is not valid. `arguments`: names of what it is called with.
    `items`: the only argument is a list of this class. `awaited_by`: the alternative that accepts coroutine functions;
    empty: they are accepted here.
    """
    given = f"{arguments[0]}: list[evenq.{items.__name__}]" if items is not None else ", ".join(arguments)
    shape = f"def {name}({given}): ..."
    if not callable(function):
        raise BadRequest(f"{name} is {function!r:.80}, not a function; give one like `{shape}`")
    if isinstance(function, type) and function.__module__ != "builtins":
        raise BadRequest(
            f"{name} is the class {function.__name__}, of which each call would make an object; give `{shape}`"
        )
    if _is(inspect.isgeneratorfunction, function) or _is(inspect.isasyncgenfunction, function):
        raise BadRequest(f"{name} is a generator function, which would never run; remove the `yield`")
    if awaited_by and is_coroutine_function(function):
        raise BadRequest(
            f"{name} is a coroutine function, which a thread cannot run; write `{shape}` without async, or use "
            f"{awaited_by}"
        )
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some built-in functions have no signature
        return
    try:
        bound = signature.bind(*arguments)
    except TypeError as error:
        raise BadRequest(
            f"{name} is called as {name}({', '.join(arguments)}) and takes {signature}: {error}; write `{shape}`"
        ) from error
    if items is not None:
        _check_annotation(name, function, signature, next(iter(bound.arguments)), items, shape)


def is_coroutine_function(function: object) -> bool:
    """Returns whether a call of the function, or of the object, makes a coroutine."""
    return _is(inspect.iscoroutinefunction, function)


def _check_annotation(
    name: str, function: Callable[..., Any], signature: inspect.Signature, parameter: str, items: type, shape: str
) -> None:
    """Raises BadRequest if the annotation of the first parameter excludes a list of `items`."""
    if signature.parameters[parameter].kind is inspect.Parameter.VAR_POSITIONAL:
        return
    hint = _hint(function, parameter)
    if not _fits(hint, items):
        text = hint.__name__ if isinstance(hint, type) and not typing.get_args(hint) else str(hint)
        raise BadRequest(
            f"{name} is called with a list of {items.__name__}, and its parameter {parameter} is annotated as {text}; "
            f"write `{shape}`"
        )


def _hint(function: Callable[..., Any], parameter: str) -> Any:
    """Returns the annotation as an object; None: there is none, or its names are not known at run time."""
    while isinstance(function, partial):
        function = function.func
    plain = function if inspect.isroutine(function) else type(function).__call__
    try:
        return typing.get_type_hints(plain).get(parameter)
    except Exception:  # noqa: BLE001 - the annotation is code of the user, and may raise whatever it likes
        return None


def _fits(hint: Any, items: type) -> bool:
    """Returns whether a list of `items` fits the annotation; True if that is not certain."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in {typing.Union, types.UnionType}:
        return any(_fits(one, items) for one in inner)
    return _may_be(list, hint) and (not inner or _may_be(items, inner[0]))


def _may_be(given: type, annotated: Any) -> bool:
    annotated = typing.get_origin(annotated) or annotated
    if not isinstance(annotated, type) or annotated in {Any, types.UnionType}:
        return True
    try:
        return issubclass(given, annotated)
    except TypeError:  # a protocol that is not for run time
        return True


def _is(kind: object, function: object) -> bool:
    """Applies `kind` to a function, a partial of one, or an object with `__call__`."""
    assert callable(kind)
    while isinstance(function, partial):
        function = function.func
    return bool(kind(function) or kind(type(function).__call__))
