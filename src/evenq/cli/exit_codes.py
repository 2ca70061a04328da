"""Exit codes of all commands, in one table: `docs/reference/cli.md` is made from it, `__main__` maps errors by it."""

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

__all__ = ["ExitCode", "NotConfirmed", "exit_code"]


class ExitCode(IntEnum):
    """The text of each is its line in the reference."""

    meaning: str

    def __new__(cls, number: int, meaning: str) -> Self:
        """A number with its line."""
        code = int.__new__(cls, number)
        code._value_ = number
        code.meaning = meaning
        return code

    DONE = (0, "done, everywhere and completely")
    NOT_DONE = (1, "not done, or only in part (standard error says what); a finding; a plan that waits for `--yes`")
    USAGE = (2, "the command line must be changed: an unknown option, a value out of its range, a port in use")
    NOT_FOUND = (3, "the topic, group, message, broker or client that it names does not exist")
    REFUSED = (4, "a server refused: no right, no valid signature, a state or a limit that forbids it")
    NO_ANSWER = (5, "no server answers at `--endpoint`, or it cannot be trusted (TLS)")
    INTERRUPTED = (128 + signal.SIGINT, "Ctrl-C")


class NotConfirmed(Error):
    """The command needs `--yes`. Only raised by the command line itself."""


_CODES: tuple[tuple[type[Error] | tuple[type[Error], ...], ExitCode], ...] = (
    ((BadRequest, PortInUse, SettingsError), ExitCode.USAGE),
    (NotFound, ExitCode.NOT_FOUND),
    (
        (Unauthorized, Forbidden, PreconditionFailed, TooManyRequests, NotImplementedYet, Unsupported),
        ExitCode.REFUSED,
    ),
)


def exit_code(error: Error) -> ExitCode:
    """Of a command that ended with the error."""
    from evenq.client.rpc.calls import AccessPointSilent
    from evenq.errors import TlsFailed

    if isinstance(error, AccessPointSilent | TlsFailed):
        return ExitCode.NO_ANSWER
    return next((code for kinds, code in _CODES if isinstance(error, kinds)), ExitCode.NOT_DONE)
