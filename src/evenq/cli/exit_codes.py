"""Exit codes of all commands. `__main__` maps errors to them, and `docs/reference/cli.md` is generated from them."""

from __future__ import annotations

import signal
from enum import IntEnum
from typing import Self

from evenq.errors import (
    BadRequest,
    Error,
    Forbidden,
    NotFound,
    NotImplementedYet,
    PortInUse,
    PreconditionFailed,
    SettingsError,
    TooManyRequests,
    Unauthorized,
    Unsupported,
)


class ExitCode(IntEnum):
    """An exit code and its line in the reference."""

    meaning: str

    def __new__(cls, number: int, meaning: str) -> Self:
        code = int.__new__(cls, number)
        code._value_ = number
        code.meaning = meaning
        return code

    DONE = (0, "done, everywhere and completely")
    NOT_DONE = (1, "not done, not yet, or only in part (see standard error); a finding; a change without its `--yes`")
    USAGE = (2, "the command line is not valid: unknown option, value out of range, port in use, unreadable file")
    NOT_FOUND = (3, "the named topic, group, message, broker, client, context or user does not exist")
    REFUSED = (4, "a server refused: a missing right, a signature that is not valid, a state or a limit")
    NO_ANSWER = (5, "no server answers at `--endpoint`, or it cannot be trusted (TLS)")
    INTERRUPTED = (
        128 + signal.SIGINT,
        "Ctrl-C in a command that was to end by itself; one that runs until Ctrl-C ends with 0",
    )


class NotConfirmed(Error):
    """A command that needs `--yes` was run without it. Only the command line raises this error."""


_CODES: tuple[tuple[type[Error] | tuple[type[Error], ...], ExitCode], ...] = (
    ((BadRequest, PortInUse, SettingsError), ExitCode.USAGE),
    (NotFound, ExitCode.NOT_FOUND),
    ((Unauthorized, Forbidden, PreconditionFailed, TooManyRequests, NotImplementedYet, Unsupported), ExitCode.REFUSED),
)


def exit_code(error: Error) -> ExitCode:
    """Returns the exit code of a command that failed with this error."""
    from evenq.client.rpc.transport import AccessPointSilent
    from evenq.errors import TlsFailed

    if isinstance(error, AccessPointSilent | TlsFailed):
        return ExitCode.NO_ANSWER
    return next((code for kinds, code in _CODES if isinstance(error, kinds)), ExitCode.NOT_DONE)
