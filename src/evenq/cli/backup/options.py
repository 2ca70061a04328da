"""The grammar of `evenq backup`."""

from __future__ import annotations

import argparse
from typing import Any

from evenq.cli.formats import add_output
from evenq.cli.grammar import command, noun
from evenq.cli.values import DIGITS_MAX, duration_ms, folder, place, positive

_BACKUP = """\
examples:
  evenq backup create --to /backups/evenq                      every broker; run it again to copy new records
  evenq backup create --broker broker-a --to /backups/evenq --max-rate 20M
  evenq backup list /backups/evenq
  evenq backup verify /backups/evenq
  evenq backup restore /backups/evenq --broker broker-a --data ./restored/broker-a

TARGET is a folder, or a URL of fsspec, if that is installed (s3://bucket/folder). `create` calls a running cluster, and
needs an admin's key if calls are signed; the others only read the target.
"""
_CREATE = """\
examples:
  evenq backup create --to /backups/evenq                      every broker, each to its own folder
  evenq backup create --broker broker-a --to /backups/evenq
  evenq backup create --to /backups/evenq --max-rate 20M       at most 20 MiB per second
  evenq backup create --to /backups/evenq --keep 14            removes older restore points and log that only they need
  evenq backup create --to /backups/evenq --check              reads the backup, and copies damaged pieces again

The first run copies the whole log, each later run only new records. Run an interrupted backup again: it continues where
it stopped. Earlier restore points stay usable.
"""
_RESTORE = """\
examples:
  evenq backup restore /backups/evenq --broker broker-a --data ./restored/broker-a
  evenq backup restore /backups/evenq --broker broker-a --until 1073741824 --data ./restored/broker-a
  evenq backup restore /backups/evenq --broker broker-a --until 1073741824 --dry-run

FOLDER must be new or empty. Start a broker of the same name with it, in a new cluster, never beside the old broker.
"""


def add_backup(commands: Any) -> None:
    actions = noun(commands, "backup", "back up running brokers, check backups, restore data folders", _BACKUP)
    create = command(
        actions,
        "create",
        "copy new records of running brokers to TARGET",
        "backup.commands",
        "create",
        examples=_CREATE,
    )
    create.add_argument(
        "--to", type=place, required=True, metavar="TARGET", help="folder or URL; created if it does not exist"
    )
    create.add_argument(
        "--broker", action="append", default=[], metavar="NAME", help="only this broker; may be repeated (default: all)"
    )
    create.add_argument(
        "--max-rate",
        type=_rate,
        default=0,
        metavar="BYTES",
        help="bytes per second, e.g. 500K, 20M (default: no limit)",
    )
    create.add_argument(
        "--keep", type=positive, default=0, metavar="N", help="number of restore points to keep (default: all)"
    )
    create.add_argument("--check", action="store_true", help="also read older pieces, and replace damaged ones")
    create.add_argument(
        "--patience", type=duration_ms, default=60_000, metavar="TIME", help="longest wait for a broker (default 60s)"
    )

    def local(name: str, text: str, examples: str = "") -> argparse.ArgumentParser:
        function = name if name != "list" else "list_points"
        made = command(actions, name, text, "backup.local", function, examples=examples, remote=False, extras="server")
        made.add_argument("target", type=place, metavar="TARGET")
        made.add_argument("--broker", default="", metavar="NAME", help="only this broker")
        return made

    add_output(local("list", "list restore points and the log offsets that can be restored"))
    add_output(local("verify", "read a backup and check every byte"))
    restore = local("restore", "create a new data folder from a backup", _RESTORE)
    restore.add_argument("--data", type=folder, metavar="FOLDER", help="the new data folder")
    restore.add_argument(
        "--until", type=int, metavar="OFFSET", help="end of the restored log, an offset (default: the whole backup)"
    )
    restore.add_argument("--dry-run", action="store_true", help="only print the plan")
    add_output(restore)


def _rate(text: str) -> int:
    unit = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:].upper(), 1)
    number = text if unit == 1 else text[:-1]
    if not number.isdecimal() or len(number) > DIGITS_MAX or not 1 << 10 <= int(number) * unit <= 1 << 50:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a rate: write bytes per second, 1K to 1048576G, as in 500K or 20M"
        )
    return int(number) * unit
