"""`evenq`: reads the command line, runs one command, tells errors in one line.

Exit codes are those of `exit_codes`. Nothing heavy is imported before the command is known: `evenq --help` must be
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
from evenq.errors import ConnectionFailed, Error, Unauthorized
from evenq.runtime.extras import is_installed, missing, sentence
from evenq.runtime.quiet_grpc import quiet_grpc

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    quiet_grpc()
    parser = make_parser()
    options = parser.parse_args(arguments)
    if getattr(options, "run", None) is None:
        getattr(options, "help_of", parser).print_help()
        return ExitCode.DONE
    if getattr(options, "credentials", None):
        _sign_with(options.credentials)
    if not is_installed("rich"):  # before anything is done that could then not be shown
        return _say(missing("the command line", "rich"))
    try:
        use_tls(options)
        if getattr(options, "one_address", False) and ONE_ADDRESS not in options.endpoint:
            options.endpoint += ONE_ADDRESS
        if hasattr(options, "endpoint") and not hasattr(options, "silent_hint"):  # those say what they see at once
            await_election(options.endpoint)
        return int(
            options.run(options) or (ExitCode.NOT_DONE if getattr(options, "incomplete", False) else ExitCode.DONE)
        )
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        sys.stderr.close()  # the reader of a pipe left; a second complaint at exit would be ours
        return ExitCode.DONE
    except Error as error:
        return _exit_code(error, options)
    except ModuleNotFoundError as error:
        return _say(sentence("this command", error))
    except BaseExceptionGroup as group:
        known = [error for error in _flat(group) if isinstance(error, Error)]
        if not known:
            raise
        return _exit_code(known[0], options)
    except OSError as error:
        return _say(str(error))


def _sign_with(path: str) -> None:
    """All clients of this process look for their keys in the environment; the file goes before what stands there."""
    for variable in ("EVENQ_ACCESS_KEY", "EVENQ_SECRET_KEY", "EVENQ_SECURITY_TOKEN"):
        os.environ.pop(variable, None)
    os.environ["EVENQ_CREDENTIALS"] = path


def _exit_code(error: Error, options: argparse.Namespace) -> int:
    """Of a command that failed; the error is printed."""
    _say(" ".join(_sentence(error, options).split()))
    return int(exit_code(error))


def _sentence(error: Error, options: argparse.Namespace) -> str:
    """The error's own, with what to type next where the command line knows more than the error."""
    if not hasattr(options, "endpoint"):
        return str(error)
    if isinstance(error, ConnectionFailed):
        from evenq.client.rpc.calls import AccessPointSilent

        if isinstance(error, AccessPointSilent):
            return (
                f"no server answers at {options.endpoint}; start one with `evenq up`, or name another with "
                f"--endpoint HOST:PORT{getattr(options, 'silent_hint', '')}"
            )
    if isinstance(error, Unauthorized) and "x-mq-date-time" not in error.message:  # that is about a clock
        return (
            f"{error}: --credentials FILE names a file with both, or set EVENQ_ACCESS_KEY and EVENQ_SECRET_KEY, or "
            "EVENQ_CREDENTIALS to the file's path"
        )
    return str(error)


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
