"""`evenq`: parses the command line, runs one command and reports an error in one line.

Exit codes are those of `exit_codes`. No heavy module is imported before the command is known: `evenq --help` must be
instant.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from evenq.cli.elections import await_election
from evenq.cli.exit_codes import ExitCode, exit_code
from evenq.cli.output import complain
from evenq.cli.parser import make_parser
from evenq.cli.tls_options import use_tls
from evenq.client.core.routes.access_points import ONE_ADDRESS
from evenq.errors import ConnectionFailed, Error, RequestTimeout, Unauthorized
from evenq.runtime.extras import is_installed, missing, sentence
from evenq.runtime.quiet_grpc import quiet_grpc

_UNREADABLE = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError)
"""Errors of a file or folder that the command line names."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    quiet_grpc()
    parser = make_parser()
    if "_ARGCOMPLETE" in os.environ:  # set by the shell's function of `evenq completion`
        from evenq.cli.completion import answer

        answer(parser)
    options = parser.parse_args(arguments)
    if getattr(options, "run", None) is None:
        getattr(options, "help_of", parser).print_help()
        return ExitCode.DONE
    if not is_installed("rich"):  # checked before any change, whose result could not be printed
        return _say(missing("this command", "rich", extra=options.extras))
    period = getattr(options, "watch", None)
    if period is None:
        return _attempt(options)
    from evenq.cli.watching import watch

    try:
        return watch(options, _attempt, sys.argv[1:] if arguments is None else arguments)
    except BrokenPipeError:
        return _without_reader()


def _attempt(options: argparse.Namespace) -> int:
    """Runs the command once; an error becomes a line and an exit code."""
    try:
        _settle(options)
        use_tls(options)
        if getattr(options, "one_address", False) and ONE_ADDRESS not in options.endpoint:
            options.endpoint += ONE_ADDRESS
        if hasattr(options, "endpoint") and not hasattr(
            options, "silent_hint"
        ):  # these commands report the outage itself
            await_election(options.endpoint)
        return int(
            options.run(options) or (ExitCode.NOT_DONE if getattr(options, "incomplete", False) else ExitCode.DONE)
        )
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        return _without_reader()
    except Error as error:
        return _exit_code(error, options)
    except UnicodeEncodeError as error:
        if error.reason != "surrogates not allowed":  # the terminal cannot show a text
            raise
        _say(f"an argument is not valid UTF-8: {error.object!r:.80}; write it in UTF-8")
        return ExitCode.USAGE
    except ModuleNotFoundError as error:
        return _say(sentence("this command", error))
    except BaseExceptionGroup as group:
        known = [error for error in _flat(group) if isinstance(error, Error)]
        if not known:
            raise
        return _exit_code(known[0], options)
    except OSError as error:
        code = _say(str(error))
        return ExitCode.USAGE if isinstance(error, _UNREADABLE) and error.filename else code


def _without_reader() -> int:
    """Ends a command whose reader of the pipe ended; Python would print an error at exit."""
    sys.stderr.close()
    return ExitCode.DONE


def _settle(options: argparse.Namespace) -> None:
    from evenq.cli.contexts.settling import settle  # not at the top: --help needs no file of contexts

    settle(options)


def _exit_code(error: Error, options: argparse.Namespace) -> int:
    _say(" ".join(_sentence(error, options).split()))
    return int(exit_code(error))


def _sentence(error: Error, options: argparse.Namespace) -> str:
    """Returns the error text, with the next command where only the command line knows it."""
    if not hasattr(options, "endpoint"):
        return str(error)
    if isinstance(error, ConnectionFailed):
        from evenq.client.rpc.transport import AccessPointSilent

        if isinstance(error, AccessPointSilent):
            if "timed out" in str(error):  # gRPC's text: something accepted the connection and then sent nothing
                return (
                    f"{options.endpoint}{_of_context(options)} accepted a connection and did not answer in time. It "
                    "may be busy: try again; if it is not an evenq server, name one with --endpoint HOST:PORT"
                )
            return (
                f"no server answers at {options.endpoint}{_of_context(options)}; start one with `evenq up`, or name "
                f"another with --endpoint HOST:PORT{getattr(options, 'silent_hint', '')}"
            )
    if isinstance(error, RequestTimeout) and "did not answer" in str(error) and hasattr(options, "timeout"):
        return f"{error}. The server may be busy: try again, or use --timeout {3 * options.timeout}"
    if (
        isinstance(error, Unauthorized) and "x-mq-date-time" not in error.message
    ):  # such an error is about a clock, not about keys
        return (
            f"{error}: give --credentials FILE (access_key and secret_key), or set EVENQ_ACCESS_KEY and "
            "EVENQ_SECRET_KEY, or EVENQ_CREDENTIALS to the file's path"
        )
    return str(error)


def _of_context(options: argparse.Namespace) -> str:
    name = getattr(options, "settled_by", "")
    return f" (context {name})" if name else ""


def _say(text: str) -> int:
    complain(f"evenq: {text}")
    return ExitCode.NOT_DONE


def _flat(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    errors: list[BaseException] = []
    for error in group.exceptions:
        errors += _flat(error) if isinstance(error, BaseExceptionGroup) else [error]
    return errors


if __name__ == "__main__":
    sys.exit(main())
