"""`evenq completion SHELL`: prints the script of a shell; and the answers to the script, by argcomplete.

The script calls `evenq` with the line typed so far in the environment variable _ARGCOMPLETE. `__main__` then calls
`answer`, which prints the proposals and ends the process. Without that variable nothing here is imported.
"""

from __future__ import annotations

import argparse
from typing import Any

from evenq.cli.output import print_lines
from evenq.errors import Unsupported
from evenq.runtime.extras import is_installed, missing

PATHS = frozenset({"FILE", "DIR", "FOLDER", "TARGET"})
"""Arguments that are completed by the names of files; other texts without a completer get no proposals."""


def run(options: argparse.Namespace) -> None:
    if not is_installed("argcomplete"):
        raise Unsupported(missing("completion", "argcomplete"))
    from argcomplete.shell_integration import shellcode

    print_lines(shellcode(["evenq"], shell=options.shell).strip("\n"), keep="\n\t")


def answer(parser: argparse.ArgumentParser) -> None:
    """Prints the proposals for the line in the environment, and ends the process."""
    if not is_installed("argcomplete"):
        return
    import argcomplete
    from argcomplete.completers import FilesCompleter

    files = FilesCompleter()

    def paths(prefix: str, action: argparse.Action, **more: Any) -> list[str]:
        return list(files(prefix, **more)) if action.metavar in PATHS else []

    argcomplete.autocomplete(parser, always_complete_options=False, default_completer=paths)  # type: ignore[arg-type]  # a function is called like its class of completers
