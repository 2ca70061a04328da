"""The grammar of `evenq store`: what each action takes, and its examples. Part of `parser`, imports nothing heavy."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from evenq.cli.values import folder

__all__ = ["add_store"]

_STORE = """\
examples:
  evenq store inspect ./queue/broker-a
  evenq store verify ./queue/broker-a
  evenq store dump ./queue/broker-a --topic orders --limit 10
  evenq store repair ./queue/broker-a

DIR is a broker's data folder: the one that holds `commitlog`. All but `repair --apply` only read, so they may be run
beside a running broker; then they check the part before its checkpoint.
"""
_INSPECT = """\
examples:
  evenq store inspect ./queue/broker-a              files, queues, and what the broker would read at its start
  evenq store inspect ./queue/broker-a --quick      without counting the log's records
  evenq store inspect ./queue/broker-a --json
"""
_VERIFY = """\
examples:
  evenq store verify ./queue/broker-a               each problem with file, byte and what to do next
  evenq store verify ./queue/broker-a --json

exit codes: 0 clean (a torn tail is harmless: the next start removes it), 1 problems, 2 the folder cannot be read.
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
  evenq store repair ./queue/broker-a                  prints the plan, and changes nothing
  evenq store repair ./queue/broker-a --apply          applies the plan
  evenq store repair ./queue/broker-a --accept-loss    prints what cutting the log at its damage would lose

It changes only what is provably safe: it cuts a torn tail, and removes derived files that do not agree with the log
(the next start builds them again) and a damaged snapshot if an older one covers it. It moves them to DIR/repair-TIME.
"""


def add_store(
    commands: Any, noun: Callable[[Any, str, str, str], Any], command: Callable[..., argparse.ArgumentParser]
) -> None:
    """Add the group. `noun` and `command` make a group and an action of it."""
    actions = noun(commands, "store", "inspect, check, export and repair a broker's data folder", _STORE)

    def action(name: str, text: str, module: str, examples: str) -> argparse.ArgumentParser:
        made = command(actions, name, text, module, name, examples=examples, remote=False)
        made.add_argument("dir", type=folder, metavar="DIR")
        return made

    inspect = action("inspect", "show what a data folder holds, and what a start would read", "store", _INSPECT)
    inspect.add_argument("--quick", action="store_true", help="do not read the log, so do not count its records")
    _json(inspect)
    _json(action("verify", "check every record and every derived file", "store", _VERIFY))
    _add_dump(action("dump", "print messages as JSON lines, or write them as Parquet", "store_dump", _DUMP))
    repair = action("repair", "plan the repair of a stopped broker's folder, or apply it", "store_repair", _REPAIR)
    repair.add_argument("--apply", action="store_true", help="apply the plan")
    repair.add_argument(
        "--accept-loss",
        action="store_true",
        help="also cut the log at its first damage, with all records after it",
    )
    _json(repair)


def _json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON for programs instead of tables for people")


def _add_dump(dump: argparse.ArgumentParser) -> None:
    dump.add_argument("--topic", metavar="NAME", help="only this topic; a number is a topic id")
    dump.add_argument("--queue", type=int, metavar="N", help="only this queue id")
    dump.add_argument(
        "--from",
        dest="begin",
        metavar="TIME",
        help="stored at or after: ISO time (local, unless it has an offset), or ms",
    )
    dump.add_argument("--to", dest="end", metavar="TIME", help="stored before")
    dump.add_argument("--limit", type=int, metavar="N", help="stop after N lines")
    dump.add_argument("--states", action="store_true", help="also records of the broker's state")
    dump.add_argument("--timers", action="store_true", help="also timers, and the records that end them")
    dump.add_argument(
        "--format", choices=("json", "parquet"), default="json", help="json lines or parquet (default %(default)s)"
    )
    dump.add_argument("--output", type=Path, metavar="FILE", help="write here (default: standard output)")
