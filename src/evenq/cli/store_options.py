"""The grammar of `evenq store`: what each action takes, and its examples. Part of `parser`, imports nothing heavy."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["add_store"]

_STORE = """\
examples:
  evenq store inspect ./queue/broker-a
  evenq store verify ./queue/broker-a
  evenq store dump ./queue/broker-a --topic orders --limit 10
  evenq store repair ./queue/broker-a

DIR is a broker's data folder: the one that holds `commitlog`. All but `repair --apply` only read, so they may be run
beside a running broker; then they judge what lies before its checkpoint.
"""
_INSPECT = """\
examples:
  evenq store inspect ./queue/broker-a              files, queues, and what a start would read
  evenq store inspect ./queue/broker-a --quick      without counting what is in the log
  evenq store inspect ./queue/broker-a --json
"""
_VERIFY = """\
examples:
  evenq store verify ./queue/broker-a               each finding with file, byte and what to do next
  evenq store verify ./queue/broker-a --json

exit codes: 0 clean (a torn tail is harmless: a start cuts it), 1 findings, 2 the folder cannot be read.
"""
_DUMP = """\
examples:
  evenq store dump ./queue/broker-a --topic orders --limit 10
  evenq store dump ./queue/broker-a --topic orders --queue 3 --from 2026-01-31T08:00 --to 2026-01-31T09:00
  evenq store dump ./queue/broker-a --states --timers > all.jsonl
  evenq store dump ./queue/broker-a --format parquet --output orders.parquet --topic orders

One JSON object a line. `body` is text, or else `body_base64`. Times are ms since the epoch.
"""
_REPAIR = """\
examples:
  evenq store repair ./queue/broker-a                  shows what it would do, and does nothing
  evenq store repair ./queue/broker-a --apply          does it
  evenq store repair ./queue/broker-a --accept-loss    shows what cutting the log at its damage would lose

Only what can be proven is done: a torn tail is cut, derived files that do not agree are taken out (a start makes them
again), a damaged snapshot too when an older one covers it. All that goes is moved to DIR/repair-TIME.
"""


def add_store(
    commands: Any, noun: Callable[[Any, str, str, str], Any], command: Callable[..., argparse.ArgumentParser]
) -> None:
    """Add the group. `noun` and `command` make a group and an action of it."""
    actions = noun(commands, "store", "look into a broker's data folder, check, export and repair it", _STORE)

    def action(name: str, text: str, module: str, examples: str) -> argparse.ArgumentParser:
        made = command(actions, name, text, module, name, examples=examples, remote=False)
        made.add_argument("dir", type=Path, metavar="DIR")
        return made

    inspect = action("inspect", "show what a data folder holds, and what a start would do", "store", _INSPECT)
    inspect.add_argument("--quick", action="store_true", help="do not read the log: no counts of records")
    _json(inspect)
    _json(action("verify", "check every record and every derived file", "store", _VERIFY))
    _add_dump(action("dump", "print messages as JSON lines, or write them as Parquet", "store_dump", _DUMP))
    repair = action("repair", "plan the repair of a stopped broker's folder, or do it", "store_repair", _REPAIR)
    repair.add_argument("--apply", action="store_true", help="really do it")
    repair.add_argument(
        "--accept-loss", action="store_true", help="also cut the log at its first damage: all records behind it go"
    )
    _json(repair)


def _json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON for programs instead of tables for people")


def _add_dump(dump: argparse.ArgumentParser) -> None:
    dump.add_argument("--topic", metavar="NAME", help="only this topic; a number is a topic id")
    dump.add_argument("--queue", type=int, metavar="N", help="only this queue id")
    dump.add_argument(
        "--from", dest="begin", metavar="TIME", help="stored at or after: ISO time (local unless it says), or ms"
    )
    dump.add_argument("--to", dest="end", metavar="TIME", help="stored before")
    dump.add_argument("--limit", type=int, metavar="N", help="stop after N lines")
    dump.add_argument("--states", action="store_true", help="also state records: what the broker noted")
    dump.add_argument("--timers", action="store_true", help="also timers and their ends")
    dump.add_argument(
        "--format", choices=("json", "parquet"), default="json", help="json lines or parquet (default %(default)s)"
    )
    dump.add_argument("--output", type=Path, metavar="FILE", help="write here (default: standard output)")
