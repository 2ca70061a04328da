"""`evenq backup list | verify | restore`: what needs the target alone, and no broker."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
from pathlib import Path

from evenq_broker.core.state.handles import KEY_BYTES
from evenq_broker.core.state.records import KeyPut, encode

from evenq.cli.backup import target_of
from evenq.cli.output import Column, Listing, Page, console, print_page, progress_console
from evenq.cli.store import ProgressBar
from evenq.errors import BadRequest, Error
from evenq.runtime.clock import SystemClock
from evenq.store.backup.manifest import BackupManifest
from evenq.store.backup.reading import broker_names, chosen_broker, known_manifest
from evenq.store.backup.restoring import Restored, RestorePlan, plan_restore, settle
from evenq.store.backup.restoring import restore as restore_folder
from evenq.store.backup.target import BackupTarget
from evenq.store.backup.verifying import verify as verify_backup

__all__ = ["list_points", "restore", "verify"]

EXIT_CLEAN, EXIT_FINDINGS = 0, 1
_POINTS = (
    Column("broker", "broker"),
    Column("number", "restore point", "number"),
    Column("created_ms", "made", "time"),
    Column("log_start", "log from", "number"),
    Column("first", "restores from", "number"),
    Column("last", "to", "number"),
    Column("epoch", "epoch", "number"),
    Column("copied_bytes", "copied bytes", "number"),
)
_FINDINGS = (Column("broker", "broker"), Column("what", "what", "sentence"))


def _names(target: BackupTarget, options: argparse.Namespace) -> list[str]:
    names = broker_names(target)
    return [chosen_broker(target, options.broker)] if options.broker or not names else names


def _newest(target: BackupTarget, name: str) -> BackupManifest:
    """The newest manifest that can be read; of newer ones it is said that they cannot: what only they name is not in
    what follows.
    """
    known = known_manifest(target, name)
    for damage in known.damaged:
        progress_console().print(
            f"{damage}. Restore point {known.manifest.number} of broker {name} is the newest that can be read; the "
            "next `evenq backup create` copies again what is behind it.",
        )
    return known.manifest


def list_points(options: argparse.Namespace) -> None:
    """`evenq backup list TARGET`."""
    target = target_of(options.target)
    rows: list[tuple[str | int, ...]] = []
    for name in _names(target, options):
        manifest = _newest(target, name)
        rows += [
            (name, point.number, point.created_ms, point.log_start, point.first, manifest.last_of(point), point.epoch,
             point.copied_bytes)
            for point in manifest.all_points
        ]  # fmt: skip
    print_page(Page(facts={}, listings=[Listing(key="points", columns=_POINTS, rows=rows)]), as_json=options.json)


def verify(options: argparse.Namespace) -> int:
    """`evenq backup verify TARGET`."""
    target = target_of(options.target)
    rows: list[tuple[str, str]] = []
    bytes_read = 0
    for name in _names(target, options):
        try:
            with ProgressBar(f"verifying {name}", quiet=options.json) as progress:
                verdict = verify_backup(target, name, progress)
        except Error as error:
            rows.append((name, error.message))
        else:
            bytes_read += verdict.bytes_read
            rows += [(name, finding) for finding in verdict.findings]
    if options.json:
        facts = {"target": options.target, "clean": not rows, "log_bytes": bytes_read}
        print_page(Page(facts=facts, listings=[Listing(key="findings", columns=_FINDINGS, rows=rows)]), as_json=True)
    else:
        for name, what in rows:
            console().print(f"DAMAGED  {name}  {what}")
        end = f"NOT clean: {len(rows)} findings" if rows else f"clean: {bytes_read:,} bytes of log, every record fits"
        console().print(end)
    return EXIT_FINDINGS if rows else EXIT_CLEAN


def restore(options: argparse.Namespace) -> None:
    """`evenq backup restore TARGET --data FOLDER`."""
    if options.data is None and not options.dry_run:
        raise BadRequest("say where the new data folder shall be: --data FOLDER")
    target = target_of(options.target)
    name = chosen_broker(target, options.broker)
    manifest = _newest(target, name)
    plan = plan_restore(target, manifest, options.until)
    if options.dry_run:
        print_page(Page(facts=_facts(plan, manifest, None, None)), as_json=options.json)
        return
    folder: Path = options.data
    with ProgressBar(f"restoring {name}", quiet=options.json) as progress:
        restored = restore_folder(target, plan, folder, progress)
    key = encode([KeyPut(os.urandom(KEY_BYTES))])  # handles of the old broker are none of this one
    logging.getLogger("evenq.store").setLevel(logging.ERROR)  # that all is derived anew is no news here
    asyncio.run(settle(folder, name, key, clock=SystemClock()))
    print_page(Page(facts=_facts(plan, manifest, folder, restored)), as_json=options.json)
    if not options.json:
        console().print(
            f"\nStart broker {name} on it in a new cluster; other copies of its group, if there are any, begin empty. "
            "Retention goes by when messages were stored: raise store.retention_ms first if they are old.",
        )


def _facts(
    plan: RestorePlan, manifest: BackupManifest, folder: Path | None, restored: Restored | None
) -> dict[str, str | int | bool | list[str] | None]:
    return {
        "broker": manifest.broker_name,
        "from_cluster": manifest.cluster,
        "restore_point": plan.point.number,
        "log_start": plan.point.log_start,
        "until": plan.until,
        "epoch": plan.epoch_floor,
        **({"folder": str(folder)} if folder is not None else {}),
        **({"last_stored_ms": restored.last_store_ms} if restored is not None else {}),
    }
