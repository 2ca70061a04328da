"""Checks the functions that users hand in, when they hand them in: a listener that cannot be called would else fail for
each message, long after the line with the mistake.

Called by the constructors of both faces. Always true: what passes takes the arguments that it will be given, and its
result is looked at (a coroutine that is never awaited, a generator that is never run would count as success).
"""

from __future__ import annotations

import inspect
from functools import partial

from evenq.errors import BadRequest

__all__ = ["check_function"]


def check_function(name: str, function: object, *arguments: str, awaited_by: str = "") -> None:
    """`arguments`: what it will be called with, for people. `awaited_by` names what takes a coroutine function, where
    one is not taken; empty: it is taken. Raises BadRequest with the fix.
    """
    shape = f"def {name}({', '.join(arguments)}): ..."
    if not callable(function):
        raise BadRequest(f"{name} is {function!r:.80}, not a function; give one like `{shape}`")
    if _is(inspect.isgeneratorfunction, function) or _is(inspect.isasyncgenfunction, function):
        raise BadRequest(f"{name} is a generator function, which would never run; take the `yield` out of it")
    if awaited_by and _is(inspect.iscoroutinefunction, function):
        raise BadRequest(
            f"{name} is a coroutine function, which a thread cannot run; write `{shape}` without async, or use "
            f"{awaited_by}"
        )
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some built-in functions tell nothing
        return
    try:
        signature.bind(*arguments)
    except TypeError as error:
        raise BadRequest(
            f"{name} is called as {name}({', '.join(arguments)}) and takes {signature}: {error}; write `{shape}`"
        ) from error


def _is(kind: object, function: object) -> bool:
    """Of a function, a partial of one, or an object with `__call__`."""
    assert callable(kind)
    while isinstance(function, partial):
        function = function.func
    return bool(kind(function) or kind(type(function).__call__))
