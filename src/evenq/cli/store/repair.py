"""`evenq store repair DIR`: prints a plan; `--apply` carries it out under the folder's lock."""

from __future__ import annotations

import argparse
import json
import secrets
from datetime import UTC, datetime
from typing import Any

from evenq_broker.loops.replication.identity import FILE
from evenq_broker.loops.replication.remembered import replace_file

from evenq.cli.output import Column, Listing, Page, print_lines, print_page
from evenq.cli.store.commands import ProgressBar, finding_lines, folder_of, unreadable
from evenq.errors import StoreError, StoreLocked
from evenq.runtime.clock import SystemClock
from evenq.store.inspection import repair as repairing
from evenq.store.inspection.folder import REPAIRS
from evenq.store.inspection.verify import FolderVerdict, verify
from evenq.store.io.disk import Disk, ReadOnlyDisk, RealDisk, read_whole
from evenq.store.log import lock

RANGES_SHOWN = 40
_AS_COPY = (
    "This is one copy of a broker group. Other copies may have the records that are cut here: while another copy "
    "leads, a start copies damaged records from it, and a start with an empty folder copies everything. The group "
    "treats a cut copy as a new one, which does not lead before it is in sync. If no other copy is left, `evenq broker "
    "elect-unclean` makes it the leader."
)


def repair(options: argparse.Namespace) -> int:
    """Plans, and applies with `--apply`. Returns 1 if findings remain. Raises StoreLocked while a broker runs."""
    try:
        reader = folder_of(options.dir)
    except StoreError as error:
        return unreadable(error)
    owner = reader.owner()
    if owner is not None:
        raise StoreLocked(f"the data folder {options.dir} is in use by process {owner}: stop that broker first")
    if not options.apply:
        verdict = _look(options, reader)
        plan = repairing.plan_of(reader, verdict, accept_loss=options.accept_loss)
        _report(options, verdict, plan, done="", renewed=plan.lost_from is not None and is_copy(reader))
        return 1 if plan.left else 0
    disk = RealDisk(options.dir)
    lock.acquire(disk)
    try:
        verdict = _look(options, reader)
        plan = repairing.plan_of(disk, verdict, accept_loss=options.accept_loss)
        renewed = plan.lost_from is not None and is_copy(disk)
        if renewed:  # first: a cut folder must never have the id that the group trusts
            give_new_store_id(disk)
        into = f"{REPAIRS}{datetime.fromtimestamp(SystemClock().now_ms() / 1000, UTC):%Y%m%dT%H%M%SZ}"
        for _ in repairing.apply(disk, verdict.folder, plan, into=into):
            pass
    finally:
        disk.unlock()
    _report(options, verdict, plan, done=str(options.dir / into), renewed=renewed)
    return 1 if plan.left else 0


def _look(options: argparse.Namespace, reader: ReadOnlyDisk) -> FolderVerdict:
    with ProgressBar("verifying", quiet=options.output.for_programs) as progress:
        return verify(reader, owner=lambda: None, on_progress=progress)  # the caller holds the lock, or found it free


def _report(
    options: argparse.Namespace, verdict: FolderVerdict, plan: repairing.RepairPlan, *, done: str, renewed: bool
) -> None:
    columns = (
        Column("action", "action"),
        Column("path", "file"),
        Column("log_offset", "from log offset", "number"),
        Column("size", "bytes", "number"),
        Column("why", "why", "sentence"),
    )
    rows = [(str(step.action), step.path, step.log_offset or None, step.size, step.why) for step in plan.steps]
    facts: dict[str, str | int | bool | list[str] | None] = {
        "applied": bool(done and plan.steps),
        "kept_in": done if plan.steps else "",
        "lost_from": plan.lost_from,
        "lost_bytes": plan.lost_bytes,
        "lost": [str(gone) for gone in plan.lost],
        "new_copy": renewed,
        "left": len(plan.left),
    }
    steps = Listing(key="steps", columns=columns, rows=rows, title="done" if done else "would be done", empty="nothing")
    if options.output.for_programs:
        print_page(Page(facts=facts, listings=[steps], names="steps.path"), options.output)
        return
    print_page(Page(facts={}, listings=[steps]), options.output)
    if plan.lost_from is not None:
        print_lines(f"lost: {plan.lost_bytes} bytes of the log from offset {plan.lost_from} on")
        for gone in plan.lost[:RANGES_SHOWN]:
            print_lines(f"  {gone}")
        if len(plan.lost) > RANGES_SHOWN:
            print_lines(f"  and ranges of {len(plan.lost) - RANGES_SHOWN} more queues (--json shows all)")
    if renewed:
        print_lines("", _AS_COPY)
    for finding in plan.left:
        print_lines("", "not repaired:", *finding_lines(finding))
    print_lines("", _advice(options, verdict, plan, done))


def _advice(options: argparse.Namespace, verdict: FolderVerdict, plan: repairing.RepairPlan, done: str) -> str:
    flags = " --accept-loss" if options.accept_loss else ""
    if done and plan.steps:
        return f"Done. The removed data are in {done}. Start the broker; then: evenq store verify {options.dir}"
    if plan.steps:
        return f"Nothing was changed. To apply it: evenq store repair {options.dir}{flags} --apply"
    if verdict.cut_at is not None and not options.accept_loss:
        return (
            f"The log is damaged at offset {verdict.cut_at}. Restore the folder from a copy, or see the loss if it "
            f"is cut there: evenq store repair {options.dir} --accept-loss"
        )
    return "There is nothing to repair." if not plan.left else "No repair step can fix the remaining problems."


def is_copy(disk: Disk) -> bool:
    """Returns whether the folder is one copy of a broker group."""
    return read_whole(disk, FILE) is not None


def give_new_store_id(disk: Disk) -> None:
    """Replaces the store id of a copy whose log an operator cuts. A StoreError changes nothing.

    The group record names the stores that have all acknowledged records; any of them may lead. A cut folder must not be
    one of them: as leader it would cut the other copies to its own log. With a new id it is a new copy, which follows
    until it is in sync. The epoch stays: its promises do not depend on records.
    """
    try:
        fields: dict[str, Any] = dict(json.loads(read_whole(disk, FILE) or b""))
        fields["store_id"] = secrets.token_hex(len(fields["store_id"]) // 2)
        replace_file(disk, FILE, fields)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise StoreError(
            f"{disk.describe(FILE)}, the identity of this copy in its broker group, cannot be changed ({error}), so "
            "the log was not cut: start this copy with an empty folder, and it copies everything"
        ) from error
