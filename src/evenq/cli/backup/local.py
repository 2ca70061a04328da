"""`evenq backup list | verify | restore`: commands that need only the target, no broker."""

from __future__ import annotations

import argparse
import asyncio
import os
from pathlib import Path

from evenq_broker.core.state.handles import KEY_BYTES
from evenq_broker.core.state.records import KeyPut, encode

from evenq.cli.backup.commands import target_of
from evenq.cli.output import Column, Listing, Page, console, print_page, progress_console
from evenq.cli.store.commands import ProgressBar
from evenq.errors import BadRequest, Error
from evenq.runtime.clock import SystemClock
from evenq.serving.program.logs import errors_only
from evenq.store.backup.manifest import BackupManifest
from evenq.store.backup.reading import broker_names, chosen_broker, known_manifest
from evenq.store.backup.restoring import Restored, RestorePlan, plan_restore, settle
from evenq.store.backup.restoring import restore as restore_folder
from evenq.store.backup.target import BackupTarget
from evenq.store.backup.verifying import verify as verify_backup

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
    """Returns the newest readable manifest and warns about newer ones, whose additions are then left out."""
    known = known_manifest(target, name)
    for damage in known.damaged:
        progress_console().print(
            f"{damage}. Restore point {known.manifest.number} of broker {name} is the newest readable one; the "
            "next `evenq backup create` copies all later records again.",
        )
    return known.manifest


def list_points(options: argparse.Namespace) -> None:
    target = target_of(options.target)
    rows: list[tuple[str | int, ...]] = []
    for name in _names(target, options):
        manifest = _newest(target, name)
        for point in manifest.all_points:
            log = (point.log_start, point.first, manifest.last_of(point), point.epoch)
            rows.append((name, point.number, point.created_ms, *log, point.copied_bytes))
    print_page(Page(facts={}, listings=[Listing(key="points", columns=_POINTS, rows=rows)]), options.output)


def verify(options: argparse.Namespace) -> int:
    target = target_of(options.target)
    rows: list[tuple[str, str]] = []
    bytes_read = 0
    for name in _names(target, options):
        try:
            with ProgressBar(f"verifying {name}", quiet=options.output.for_programs) as progress:
                verdict = verify_backup(target, name, progress)
        except Error as error:
            rows.append((name, error.message))
        else:
            bytes_read += verdict.bytes_read
            rows += [(name, finding) for finding in verdict.findings]
    if options.output.for_programs:
        facts = {"target": options.target, "clean": not rows, "log_bytes": bytes_read}
        print_page(Page(facts=facts, listings=[Listing(key="findings", columns=_FINDINGS, rows=rows)]), options.output)
    else:
        for name, what in rows:
            console().print(f"DAMAGED  {name}  {what}")
        end = (
            f"NOT clean: {len(rows)} findings" if rows else f"clean: {bytes_read:,} bytes of log, all records are valid"
        )
        console().print(end)
    return EXIT_FINDINGS if rows else EXIT_CLEAN


def restore(options: argparse.Namespace) -> None:
    if options.data is None and not options.dry_run:
        raise BadRequest("the new data folder is missing: add --data FOLDER")
    target = target_of(options.target)
    name = chosen_broker(target, options.broker)
    manifest = _newest(target, name)
    plan = plan_restore(target, manifest, options.until)
    if options.dry_run:
        print_page(Page(facts=_facts(plan, manifest, None, None)), options.output)
        return
    folder: Path = options.data
    with ProgressBar(f"restoring {name}", quiet=options.output.for_programs) as progress:
        restored = restore_folder(target, plan, folder, progress)
    key = encode([KeyPut(os.urandom(KEY_BYTES))])  # receipt handles of the old broker must not be valid here
    with errors_only("evenq.store"):  # the new derived files are expected here
        asyncio.run(settle(folder, name, key, clock=SystemClock()))
    print_page(Page(facts=_facts(plan, manifest, folder, restored)), options.output)
    if not options.output.for_programs:
        console().print()
        console().print(
            f"Start broker {name} with this folder in a new cluster; start other copies of its group empty. "
            "Retention counts from the time of storing: if messages are old, raise store.retention_ms first.",
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
