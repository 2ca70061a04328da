"""The grammar of `evenq backup`. Part of `parser`, imports nothing heavy."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from evenq.cli.values import duration_ms, folder, place, positive

__all__ = ["add_backup"]

_BACKUP = """\
examples:
  evenq backup create --to /backups/evenq                      every broker of the cluster; run it again for what is new
  evenq backup create --broker broker-a --to /backups/evenq --max-rate 20M
  evenq backup list /backups/evenq
  evenq backup verify /backups/evenq
  evenq backup restore /backups/evenq --broker broker-a --data ./restored/broker-a

TARGET is a folder, or a URL that fsspec knows (s3://bucket/folder) if that is installed. `create` talks to a running
cluster, for which it needs an admin's key where calls are signed; the others read the target alone.
"""
_CREATE = """\
examples:
  evenq backup create --to /backups/evenq                      every broker, each into a folder of its own
  evenq backup create --broker broker-a --to /backups/evenq
  evenq backup create --to /backups/evenq --max-rate 20M       20 MiB a second at most
  evenq backup create --to /backups/evenq --keep 14            forgets older restore points, with the log only they need
  evenq backup create --to /backups/evenq --check              reads what is there, and copies again what is damaged

The first run copies the whole log, each later one what is new. One that was cut off goes on where it stopped when it is
run again; what older runs brought stays usable all the time.
"""
_RESTORE = """\
examples:
  evenq backup restore /backups/evenq --broker broker-a --data ./restored/broker-a
  evenq backup restore /backups/evenq --broker broker-a --until 1073741824 --data ./restored/broker-a
  evenq backup restore /backups/evenq --broker broker-a --until 1073741824 --dry-run

FOLDER must be new or empty. Start the broker on it with the same name, in a new cluster, never beside the old one.
"""


def add_backup(
    commands: Any, noun: Callable[[Any, str, str, str], Any], command: Callable[..., argparse.ArgumentParser]
) -> None:
    """Add the group. `noun` and `command` make a group and an action of it."""
    actions = noun(commands, "backup", "back up running brokers, check backups, make data folders of them", _BACKUP)
    create = command(
        actions, "create", "back up running brokers: copy what is new to a target", "backup", "create", examples=_CREATE
    )
    create.add_argument(
        "--to", type=place, required=True, metavar="TARGET", help="folder or URL; made if it is not there"
    )
    create.add_argument(
        "--broker", action="append", default=[], metavar="NAME", help="only this one; may be repeated (default: all)"
    )
    create.add_argument(
        "--max-rate", type=_rate, default=0, metavar="BYTES", help="a second, with K, M or G (default: no limit)"
    )
    create.add_argument(
        "--keep", type=positive, default=0, metavar="N", help="restore points to keep (default: all of them)"
    )
    create.add_argument("--check", action="store_true", help="read older pieces too, and replace damaged ones")
    create.add_argument(
        "--patience", type=duration_ms, default=60_000, metavar="TIME",
        help="how long a broker that stopped answering is waited for (default 60s)",
    )  # fmt: skip

    def local(name: str, text: str, examples: str = "") -> argparse.ArgumentParser:
        made = command(actions, name, text, "backup_local", name if name != "list" else "list_points",
                       examples=examples, remote=False)  # fmt: skip
        made.add_argument("target", type=place, metavar="TARGET")
        made.add_argument("--broker", default="", metavar="NAME", help="only this one")
        return made

    _json(local("list", "list restore points, and the log offsets that can be restored"))
    _json(local("verify", "read a backup and check every byte of it"))
    restore = local("restore", "make a new data folder of a backup", _RESTORE)
    restore.add_argument("--data", type=folder, metavar="FOLDER", help="the new data folder")
    restore.add_argument(
        "--until", type=int, metavar="OFFSET", help="log offset at which it ends (default: all of the backup)"
    )
    restore.add_argument("--dry-run", action="store_true", help="only say what it would do")
    _json(restore)


def _json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON for programs instead of tables for people")


def _rate(text: str) -> int:
    unit = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:].upper(), 1)
    number = text if unit == 1 else text[:-1]
    if not number.isdecimal() or int(number) * unit < 1 << 10:
        raise argparse.ArgumentTypeError(f"{text!r} is no rate: write bytes a second, 1K or more, as in 500K or 20M")
    return int(number) * unit
