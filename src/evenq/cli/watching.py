"""`--watch [SECONDS]`: runs a show or list command again and again, until Ctrl-C.

At a terminal each result is drawn over the previous one. In a pipe each follows the previous one: JSON as one line,
YAML as one document, everything else after a line with the time. The first run decides whether there is something to
watch: its error ends the command. A later error (a broker restarts) is shown, and the next run follows.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from datetime import datetime

from evenq.cli.exit_codes import ExitCode
from evenq.cli.formats import Output
from evenq.cli.output import ScreenFrame, print_lines, redraw, terminal_height, write_errors, write_frame

_PASSING = {ExitCode.DONE, ExitCode.NOT_DONE}
"""Codes of a first run that has a result, or whose cause may pass."""


def watch(options: argparse.Namespace, attempt: Callable[[argparse.Namespace], int], words: Sequence[str]) -> int:
    """Repeats `attempt` every `options.watch` seconds; `words` are shown as the command. Returns an exit code."""
    terminal = sys.stdout.isatty()
    first = True
    try:
        while True:
            out, err = ScreenFrame(terminal=terminal), ScreenFrame(terminal=False)
            with redirect_stdout(out), redirect_stderr(err):
                code = attempt(argparse.Namespace(**vars(options)))  # a copy: commands note what was missing in it
            if code == ExitCode.INTERRUPTED:
                return ExitCode.DONE
            ends = first and (code not in _PASSING or (code == ExitCode.NOT_DONE and not out.getvalue()))
            if terminal and not ends:
                _draw(options, words, out.getvalue(), err.getvalue())
            elif ends:
                write_frame(out.getvalue())
                write_errors(err.getvalue())
            else:
                _append(options, out.getvalue(), err.getvalue())
            if ends:
                return code
            first = False
            pause(options.watch)
    except KeyboardInterrupt:
        return ExitCode.DONE


def pause(seconds: float) -> None:
    """Waits between two runs; Ctrl-C ends the wait."""
    threading.Event().wait(seconds)


def _draw(options: argparse.Namespace, words: Sequence[str], out: str, err: str) -> None:
    lines = (out + err).splitlines()
    room = terminal_height() - 3
    if len(lines) > room > 0:
        more = len(lines) - room + 1
        lines[room - 1 :] = [f"... {more} more lines: a larger terminal, or the command without --watch, shows them"]
    head = f"Every {options.watch:g} s: {shlex.join(('evenq', *words))}   {datetime.now().astimezone():%H:%M:%S}"
    redraw(head, lines)


def _append(options: argparse.Namespace, out: str, err: str) -> None:
    if out and options.output is Output.YAML:
        print_lines("---")
    elif out and options.output is not Output.JSON:
        print_lines(f"--- {datetime.now().astimezone():%Y-%m-%d %H:%M:%S}")
    write_frame(out)
    write_errors(err)
