"""The grammar of `evenq store`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from evenq.cli.formats import add_output
from evenq.cli.grammar import command, noun
from evenq.cli.values import folder

_STORE = """\
examples:
  evenq store inspect ./queue/broker-a
  evenq store verify ./queue/broker-a
  evenq store dump ./queue/broker-a --topic orders --limit 10
  evenq store repair ./queue/broker-a

DIR is a broker's data folder, which contains `commitlog`. All except `repair --apply` only read, and may run while the
broker runs; they then check the part before its checkpoint.
"""
_INSPECT = """\
examples:
  evenq store inspect ./queue/broker-a              files, queues, and the bytes that a start would read
  evenq store inspect ./queue/broker-a --quick      without counting the log's records
  evenq store inspect ./queue/broker-a --json
"""
_VERIFY = """\
examples:
  evenq store verify ./queue/broker-a               each problem with file, byte and next step
  evenq store verify ./queue/broker-a --json

exit codes: 0 clean (a torn tail is harmless: the next start removes it), 1 problems, 2 the folder cannot be read.
"""
_DUMP = """\
examples:
  evenq store dump ./queue/broker-a --topic orders --limit 10
  evenq store dump ./queue/broker-a --topic orders --queue 3 --from 2026-01-31T08:00 --to 2026-01-31T09:00
  evenq store dump ./queue/broker-a --states --timers > all.jsonl
  evenq store dump ./queue/broker-a --format parquet --output orders.parquet --topic orders

One JSON object per line. A body that is not text is in `body_base64`. Times are ms since the epoch.
"""
_REPAIR = """\
examples:
  evenq store repair ./queue/broker-a                  prints the plan; changes nothing
  evenq store repair ./queue/broker-a --apply          applies the plan
  evenq store repair ./queue/broker-a --accept-loss    prints what cutting the log at its damage would lose

Without --accept-loss all steps are safe: a torn tail is cut. Derived files that differ from the log are removed (the
next start builds them again), as is a damaged snapshot if an older one covers it. All removed data are moved to
DIR/repair-TIME.
"""


def add_store(commands: Any) -> None:
    actions = noun(commands, "store", "inspect, check, export and repair a broker's data folder", _STORE)

    def action(name: str, text: str, module: str, examples: str) -> argparse.ArgumentParser:
        made = command(actions, name, text, f"store.{module}", name, examples=examples, remote=False, extras="server")
        made.add_argument("dir", type=folder, metavar="DIR")
        return made

    inspect = action(
        "inspect", "show the contents of a data folder, and the bytes that a start would read", "commands", _INSPECT
    )
    inspect.add_argument("--quick", action="store_true", help="do not read the log: no count of records")
    add_output(inspect)
    add_output(action("verify", "check all records and all derived files", "commands", _VERIFY))
    _add_dump(action("dump", "print messages as JSON lines, or write them as Parquet", "dump", _DUMP))
    repair = action("repair", "print the plan to repair the folder of a stopped broker, or apply it", "repair", _REPAIR)
    repair.add_argument("--apply", action="store_true", help="apply the plan")
    repair.add_argument(
        "--accept-loss",
        action="store_true",
        help="also cut the log at its first damage, with all records after it",
    )
    add_output(repair)


def _add_dump(dump: argparse.ArgumentParser) -> None:
    dump.add_argument("--topic", metavar="NAME", help="only this topic; a number is a topic id")
    dump.add_argument("--queue", type=int, metavar="N", help="only this queue id")
    dump.add_argument(
        "--from", dest="begin", metavar="TIME", help="stored since: ISO 8601 (local by default) or ms since the epoch"
    )
    dump.add_argument("--to", dest="end", metavar="TIME", help="stored before")
    dump.add_argument("--limit", type=int, metavar="N", help="stop after N lines")
    dump.add_argument("--states", action="store_true", help="also records of the broker's state")
    dump.add_argument("--timers", action="store_true", help="also timers, and the records that end them")
    dump.add_argument(
        "--format", choices=("json", "parquet"), default="json", help="json lines or parquet (default %(default)s)"
    )
    dump.add_argument("--output", type=Path, metavar="FILE", help="write here (default: standard output)")
