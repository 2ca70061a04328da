"""`evenq store repair DIR`: shows a plan, and does it with `--apply` while it holds the folder's lock."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime

from evenq.cli.output import Column, Listing, Page, print_lines, print_page
from evenq.cli.repaired_copy import give_new_store_id, is_copy
from evenq.cli.store import ProgressBar, finding_lines, folder_of
from evenq.errors import StoreLocked
from evenq.runtime.clock import SystemClock
from evenq.store.inspection import repair as repairing
from evenq.store.inspection.folder import REPAIRS
from evenq.store.inspection.verify import FolderVerdict, verify
from evenq.store.io.disk import ReadOnlyDisk, RealDisk
from evenq.store.log import lock

__all__ = ["repair"]

RANGES_SHOWN = 40
_AS_COPY = (
    "This is one copy of a broker group. What is cut here, other copies may have: a start while another copy leads "
    "takes damaged records from it, and one with an empty folder copies everything. A copy that was cut is a new one "
    "to its group: it does not lead before it has everything that the others have. If no other copy is left, `evenq "
    "broker elect-unclean` lets it lead."
)


def repair(options: argparse.Namespace) -> int:
    """Plan, or plan and do. Returns 1 if findings are left that no step mends. Raises StoreLocked beside a broker."""
    reader = folder_of(options.dir)
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
        if renewed:  # first: a cut folder must at no time be what the group thinks that it is
            give_new_store_id(disk)
        into = f"{REPAIRS}{datetime.fromtimestamp(SystemClock().now_ms() / 1000, UTC):%Y%m%dT%H%M%SZ}"
        for _ in repairing.apply(disk, verdict.folder, plan, into=into):
            pass
    finally:
        disk.unlock()
    _report(options, verdict, plan, done=str(options.dir / into), renewed=renewed)
    return 1 if plan.left else 0


def _look(options: argparse.Namespace, reader: ReadOnlyDisk) -> FolderVerdict:
    with ProgressBar("verifying", quiet=options.json) as progress:
        return verify(reader, owner=lambda: None, on_progress=progress)  # the lock is ours, or was free just now


def _report(
    options: argparse.Namespace, verdict: FolderVerdict, plan: repairing.RepairPlan, *, done: str, renewed: bool
) -> None:
    columns = (
        Column("action", "action"), Column("path", "file"), Column("log_offset", "from log offset", "number"),
        Column("size", "bytes", "number"), Column("why", "why", "sentence"),
    )  # fmt: skip
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
    if options.json:
        print_page(Page(facts=facts, listings=[steps]), as_json=True)
        return
    print_page(Page(facts={}, listings=[steps]), as_json=False)
    if plan.lost_from is not None:
        print_lines(f"lost: {plan.lost_bytes} bytes of the log from offset {plan.lost_from} on")
        for gone in plan.lost[:RANGES_SHOWN]:
            print_lines(f"  {gone}")
        if len(plan.lost) > RANGES_SHOWN:
            print_lines(f"  and of {len(plan.lost) - RANGES_SHOWN} more queues (--json shows all)")
    if renewed:
        print_lines("", _AS_COPY)
    for finding in plan.left:
        print_lines("", "not mended:", *finding_lines(finding))
    print_lines("", _advice(options, verdict, plan, done))


def _advice(options: argparse.Namespace, verdict: FolderVerdict, plan: repairing.RepairPlan, done: str) -> str:
    flags = " --accept-loss" if options.accept_loss else ""
    if done and plan.steps:
        return f"Done. The removed data are in {done}. Start the broker; then: evenq store verify {options.dir}"
    if plan.steps:
        return f"Nothing was changed. To apply it: evenq store repair {options.dir}{flags} --apply"
    if verdict.cut_at is not None and not options.accept_loss:
        return (
            f"The log is damaged at offset {verdict.cut_at}. Restore the folder from a copy; or see what cutting the "
            f"log there would lose: evenq store repair {options.dir} --accept-loss"
        )
    return "There is nothing to repair." if not plan.left else "No repair step can fix the remaining problems."
