"""Named places at which a test kills or delays a process. They cost nothing when off, as everywhere outside tests.

Store and broker call `passing(name)` once per group, file or stage, never once per message. `EVENQ_FAILPOINT` of a
child process contains plans, joined by commas: `log.before_sync:7` kills it by SIGKILL at the seventh passing;
`log.before_sync:7:sleep=50` sleeps 50 ms there; `log.before_sync:7+:sleep=50` there and at each later passing.
`EVENQ_FAILPOINT_COUNTS` names a file with the counts of passings and hits, which survive the kill. Without these two
variables `passing` is an empty function. The idea comes from FreeBSD's fail(9).
"""

from __future__ import annotations

import mmap
import os
import signal
import struct
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from evenq.errors import BadRequest

VARIABLE: Final = "EVENQ_FAILPOINT"
COUNTS_VARIABLE: Final = "EVENQ_FAILPOINT_COUNTS"

_SMALL_FILE: Final = {
    "written": "The new {0} is written beside the old one, not synced.",
    "synced": "The new {0} is synced beside the old one, not renamed.",
    "renamed": "The new {0} has its name; the folder is not synced.",
    "linked": "The new {0} has its name for certain.",
}

POINTS: Final[Mapping[str, str]] = {
    "append.handing_over": "The loop is about to hand a group to the writer.",
    "append.handed_over": "The writer has the group; the loop continues.",
    "group.taken": "The writer took a group; nothing of it is in the log.",
    "group.written": "A group is written; not synced, not reported.",
    "group.safe": "A group is as safe as the flush mode requires; the loop is not notified.",
    "answer.before": "The loop was notified that a group is safe; no sender is answered.",
    "answer.after": "A group's messages are consumable, the first of its senders answered.",
    "log.before_sync": "About to sync the newest log file.",
    "log.after_sync": "The newest log file is synced.",
    "log.filled": "A log file is written to its end, not synced.",
    "log.sealed": "A full log file is synced; the next one does not exist.",
    "log.spare_made": "Space for the next log file is set aside in a spare file.",
    "log.spare_taken": "The spare file has the next log file's name; nothing is in it.",
    "log.created": "The next log file exists; its folder is not synced.",
    "log.linked": "The next log file is in its folder for certain, and empty.",
    "queue.created": "A consume queue file is open; the new entries are not in it.",
    "queue.written": "Consume queue entries are written, not synced.",
    "queue.synced": "Consume queue entries are synced.",
    "queue.linked": "A new consume queue file is in its folders for certain.",
    "checkpoint.begun": "A checkpoint begins; the log is not synced for it.",
    "checkpoint.log_synced": "The log is synced for a checkpoint; no entries are filed.",
    "checkpoint.filed": "All entries are filed; the checkpoint file is the old one.",
    **{f"checkpoint.{stage}": text.format("checkpoint") for stage, text in _SMALL_FILE.items()},
    "snapshot.begun": "A snapshot is requested; its log is not synced.",
    "snapshot.log_synced": "The log is synced up to the snapshot's place; no file is written.",
    **{f"snapshot.{stage}": text.format("snapshot") for stage, text in _SMALL_FILE.items()},
    "snapshot.removing": "The new snapshot is safe; an old one is about to be removed.",
    "snapshot.removed": "An old snapshot was removed.",
    **{f"identity.{stage}": text.format("identity file") for stage, text in _SMALL_FILE.items()},
    "retention.planned": "Log files are about to be removed; nothing was changed for it.",
    "retention.raised": "The queues begin later, in memory only.",
    "retention.snapshot_saved": "A snapshot names the log's new beginning; the checkpoint does not.",
    "retention.checkpointed": "Snapshot and checkpoint name the log's new beginning; all old files exist.",
    "retention.deleting": "An old log file is about to be removed.",
    "retention.deleted": "All old log files are removed; their folder is not synced.",
    "retention.linked": "All old log files are gone for certain.",
    **{f"index.{stage}": text.format("index file") for stage, text in _SMALL_FILE.items()},
    **{f"epochs.{stage}": text.format("epoch table") for stage, text in _SMALL_FILE.items()},
    "replay.scanned": "A follower has read its log up to a leader's snapshot; no entry is filed.",
    "replay.filed": "A follower has filed its queue entries; checkpoint and snapshot are the old ones.",
    "replay.checkpointed": "A follower has a new checkpoint; its newest snapshot is the old one.",
    "replay.saved": "A follower has its new checkpoint and snapshot; old files of timers exist.",
    "index.removing": "An index file of a removed part of the log is about to be removed.",
    "recovery.locked": "The folder is locked; nothing of it was read.",
    "recovery.identified": "The folder is ours; no log was read.",
    "recovery.rebuilding": "The consume queues are removed, to be rebuilt from the log.",
    "recovery.cutting": "A torn tail was found; it is still there.",
    "recovery.cut": "The torn tail is cut off and that is synced.",
    "recovery.scanned": "The log is read to its end; nothing of it is confirmed.",
    "recovery.ready": "The first checkpoint after a start is written; nothing is served.",
    "close.begun": "The store accepts no more appends; some may be under way.",
    "close.settled": "The last append has its outcome; the stop is not marked clean.",
    "close.marked": "The clean stop is marked; the lock is held.",
    "journal.flushing": "The broker is about to hand the changes of one turn to the store.",
    "journal.handed_over": "The store has the changes of one turn; no caller is answered.",
    "journal.safe": "The changes of one turn are safe; the waiting callers are not answered.",
    "staging.staged": "A block of staged rows is safe; its task is not answered.",
    "staging.deciding": "The coordinator is about to write the decision of a batch of staged rows.",
    "staging.decided": "A batch of staged rows is decided for certain; nothing of it is published.",
    "staging.publishing": "A group of decided rows is about to go to the store as messages.",
    "staging.published": "A group of decided rows is published for certain; no task is answered.",
    "staging.rolled": "A broker has published its part of a batch; the coordinator has not noted it.",
    "transact.storing": "The messages and acks of a transaction are about to go to the store.",
    "transact.stored": "A transaction is safe; no caller is answered, and its messages count as delivered.",
    "schedule.firing": "The messages of a schedule that is due are about to go to the store.",
    "schedule.fired": "A firing of a schedule is safe; it is not counted.",
    "schedule.given": "A schedule that is moved does not fire here any more; the broker that takes it does not know.",
    "schedule.fetched": "A schedule has arrived from the broker that gives it; nothing of it is stored here.",
    "schedule.taken": "A schedule that was moved is safe here; the broker that gave it still has it.",
    "schedule.confirmed": "The broker that gave a schedule has removed it; that is not stored here.",
    "replica.epoch_safe": "The number of a new epoch is synced; nothing was done in it.",
    "replica.epoch_begun": "The elected copy has written the first record of an epoch, not synced.",
    "replica.copied": "A follower has written records of its leader, not synced.",
    "replica.copied_safe": "A follower has synced what it wrote; its leader is not notified.",
    "replica.cut": "A follower has cut off the records that its leader does not have.",
    "replica.term_opening": "The elected copy has closed its copy of the log; no broker is open on it.",
    "replica.term_ended": "A broker whose term has ended is closed; no copy of its log is open.",
    "replica.record_proposed": "A compare-and-set of the group record is about to be sent.",
    "replica.record_set": "A compare-and-set of the group record was answered; nothing was done with it.",
    "opening.restored": "The broker has restored its state; it serves nothing.",
    "opening.key_made": "A new broker has made its key of receipt handles; it is not stored.",
    "opening.key_safe": "A new broker's key of receipt handles is stored.",
}
"""Each name and what is true there. `passing` in an armed process rejects any other name."""

_NAMES: Final = tuple(POINTS)
_SLOT: Final = struct.Struct("<QQ")


@dataclass(frozen=True, slots=True)
class FailpointPlan:
    """The action at one point."""

    name: str
    at: int
    """Number of the passing, from 1."""
    sleep_ms: int = 0
    """0: kill the process by SIGKILL."""
    onwards: bool = False
    """True: at each later passing too, as with a slow disk."""


@dataclass(frozen=True, slots=True)
class FailpointCount:
    """The number of passings of a point, and of executions of its plan."""

    passed: int
    hit: int


def parse(text: str) -> list[FailpointPlan]:
    """Returns the plans of `EVENQ_FAILPOINT`. Raises BadRequest for an unknown name or a malformed plan."""
    plans = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, rest = part.partition(":")
        number, _, action = rest.partition(":")
        verb, _, amount = action.partition("=")
        onwards, number = number.endswith("+"), number.removesuffix("+")
        if name not in POINTS:
            raise BadRequest(f"{VARIABLE} names {name!r}, not a failpoint: see evenq.runtime.failpoints.POINTS")
        if (number and not number.isdecimal()) or (action and (verb != "sleep" or not amount.isdecimal())):
            raise BadRequest(
                f"{VARIABLE} holds {part!r}; write NAME, NAME:PASSING, NAME:PASSING:sleep=MS or NAME:PASSING+:sleep=MS"
            )
        plans.append(FailpointPlan(name, max(1, int(number or "1")), int(amount or "0"), onwards))
    return plans


def read_counts(path: Path) -> dict[str, FailpointCount]:
    """Returns the counts in `EVENQ_FAILPOINT_COUNTS`, of all processes that wrote it; zeros if the file is missing."""
    data = path.read_bytes() if path.exists() else b""
    data = data.ljust(_SLOT.size * len(_NAMES), b"\0")
    return {name: FailpointCount(*_SLOT.unpack_from(data, index * _SLOT.size)) for index, name in enumerate(_NAMES)}


class Armed:
    """The failpoints of a process in which they are on; thread-safe."""

    def __init__(self, plans: list[FailpointPlan], counts: Path | None, *, end: Callable[[], None]) -> None:
        self._plans = {plan.name: plan for plan in plans}
        self._left = {plan.name: plan.at for plan in plans}
        self._places = {name: index * _SLOT.size for index, name in enumerate(_NAMES)}
        self._map = _open_counts(counts) if counts is not None else None
        self._lock = threading.Lock()
        self._end = end

    def passing(self, name: str) -> None:
        """Raises BadRequest for a name that is not in `POINTS`."""
        plan = None
        if name not in self._places:
            raise BadRequest(f"{name!r} is passed and not in evenq.runtime.failpoints.POINTS: list it with a sentence")
        with self._lock:
            if name in self._left:
                self._left[name] -= 1
                is_due = self._left[name] == 0 or (self._left[name] < 0 and self._plans[name].onwards)
                plan = self._plans[name] if is_due else None
            # Counted before the kill, in shared memory: a killed process cannot count any more.
            self._count(name, hit=plan is not None)
            if plan is not None and not plan.sleep_ms:
                self._end()  # under the lock: no other thread passes a point meanwhile
        if plan is not None and plan.sleep_ms:
            time.sleep(plan.sleep_ms / 1000)

    def _count(self, name: str, *, hit: bool) -> None:
        offset = self._places[name]
        if self._map is not None:
            passed, hits = _SLOT.unpack_from(self._map, offset)
            _SLOT.pack_into(self._map, offset, passed + 1, hits + hit)


def _open_counts(path: Path) -> mmap.mmap:
    size = _SLOT.size * len(_NAMES)
    with path.open("a+b") as file:
        if path.stat().st_size < size:
            file.truncate(size)
        return mmap.mmap(file.fileno(), size)


def _end_by_sigkill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    threading.Event().wait()  # the signal may arrive a moment later


def _off(name: str) -> None:
    pass


def _made(environment: Mapping[str, str]) -> Callable[[str], None]:
    text, counts = environment.get(VARIABLE, ""), environment.get(COUNTS_VARIABLE, "")
    if not text and not counts:
        return _off
    return Armed(parse(text), Path(counts) if counts else None, end=_end_by_sigkill).passing


passing: Final[Callable[[str], None]] = _made(os.environ)
"""Reports that the process passes a point of `POINTS`. Does nothing unless the process started with failpoints."""
