"""The store's proofs as a list of jobs, in two sizes: one for every day, one for a release.

A job is data, so it can go to another process; its name says all that is needed to run it again. `run_job` is what the
tests call; `python tests/proofs/run.py storage` runs a whole size over the machine's cores and keeps a ledger.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace

from evenq.runtime.clock import SystemClock
from evenq.store import FlushMode, StoreOptions
from evenq_proofs.storage import crashes, damage, faults
from evenq_proofs.storage.damage import Damage
from evenq_proofs.storage.judge import Tally
from evenq_proofs.storage.machine import Image, Machine
from evenq_proofs.storage.session import OPTIONS, asynchronous
from evenq_proofs.storage.small_parts import small_parts
from evenq_proofs.storage.workload import SIZES, Trace, record

BIG = (0, 30, 200, 1_500, 12_000, 30_000)
BIG_OPTIONS = replace(OPTIONS, segment_bytes=128 << 10, cache_bytes=60_000, retention_ms=0)
BIG_OPERATIONS = 110  # a little over 1 MiB
KINDS = ("crash", "again", "alice", "truncation", "flip", "fuzz", "fault", "full")


@dataclass(frozen=True, slots=True)
class Job:
    """One piece of one proof."""

    kind: str
    flush: str
    seed: int
    operations: int
    """Length of the workload."""
    shard: int
    stride: int
    """Takes each `stride`-th place from `shard` on."""
    more: int = 1
    """Outages a place, cap of a window, mutations of a store: whatever the kind calls for."""
    name: str = ""
    """The kind of fault; `killed` for a store that was not closed in order."""

    @property
    def spec(self) -> str:
        """All of it in one word, for a command line."""
        return ":".join(str(getattr(self, each.name)).replace(" ", "_") for each in fields(self))

    @classmethod
    def of(cls, spec: str) -> Job:
        """The job of a `spec`. ValueError for what is none."""
        kind, flush, seed, operations, shard, stride, more, name = spec.split(":")
        if kind not in KINDS:
            raise ValueError(f"{kind!r} is none of {', '.join(KINDS)}")
        name = name.replace("_", " ")
        return cls(kind, flush, int(seed), int(operations), int(shard), int(stride), int(more), name)

    def __str__(self) -> str:
        """Stable: a test's id."""
        words = [self.kind, self.flush, f"seed{self.seed}", f"{self.shard}of{self.stride}"]
        return "-".join([*words, self.name.replace(" ", "_").replace(",", "")] if self.name else words)


def jobs(*, full: bool) -> list[Job]:
    """All jobs of one size, breadth before depth: a run that is stopped has seen something of each kind."""
    by_kind: dict[str, list[Job]] = {}
    for job in _full() if full else _fast():
        by_kind.setdefault(job.kind, []).append(job)
    columns = [
        [(place / len(found), job) for place, job in enumerate(found)] for found in by_kind.values()
    ]  # fmt: skip
    return [job for _, job in sorted(itertools.chain(*columns), key=lambda entry: entry[0])]


def _fast() -> Iterator[Job]:
    for flush in FlushMode:
        for shard in (0, 17):
            yield Job("crash", flush, 1, 200, shard, 45, 2)
        yield Job("again", flush, 1, 60, 3, 350)
        yield Job("alice", flush, 1, 60, 512, 5, 24)
        yield Job("alice", flush, 1, 60, 4097, 5, 24)
        yield Job("full", flush, 1, 0, 3, 40)
    for name in ("", "killed"):
        yield Job("truncation", "sync", 1, 100, 7, 120, name=name)
        yield Job("flip", "sync", 2, BIG_OPERATIONS, 0, 4001, name=name)
        for seed in range(4):
            yield Job("fuzz", "async" if seed % 2 else "sync", seed, 60, 0, 1, 200, name=name)
    for name in faults.FAULTS:
        yield Job("fault", "sync", 1, 60, 1, 16, name=name)
        yield Job("fault", "async", 2, 60, 2, 24, name=name)


def _full() -> Iterator[Job]:
    for flush in FlushMode:
        for seed in range(1, 3):
            for shard in range(16):
                yield Job("crash", flush, seed, 200, shard, 16, 2)
        for shard in range(0, 64, 16):
            yield Job("again", flush, 4, 60, shard, 64)
        for seed, grain in ((5, 512), (6, 4096)):
            for shard in range(4):
                yield Job("alice", flush, seed, 60, grain + shard, 4, 128)
        for name in faults.FAULTS:
            for shard in range(3):
                yield Job("fault", flush, 7, 80, shard, 9, name=name)
        for shard in range(4):
            yield Job("full", flush, 8, 0, shard, 4)
    for name in ("", "killed"):
        for shard in range(0, 16, 4):
            yield Job("truncation", "sync", 9, 200, shard, 16, name=name)
        for shard in range(4 if name else 8):
            yield Job("flip", "sync", 10, BIG_OPERATIONS, shard * 61, 2048 if name else 512, name=name)
        for seed in range(100, 140):
            yield Job("fuzz", "async" if seed % 2 else "sync", seed, 40 + seed % 50, 0, 1, 500, name=name)


def run_job(job: Job, *, only: str = "") -> Tally:
    """Run one job in this process, or one case of it."""
    clock = SystemClock()
    started = clock.monotonic_ms()
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)  # a store that starts on ruins says so each time
    try:
        with small_parts():
            tally = asyncio.run(_run(job, only))
    finally:
        logging.disable(level)
    tally.seconds = (clock.monotonic_ms() - started) / 1000
    tally.violations = [f"{violation}\n    again: {again(job, violation)}" for violation in tally.violations]
    return tally


def again(job: Job, violation: str) -> str:
    """The command that runs just one case."""
    words = ["--job", job.spec, "--case", violation.partition(": ")[0]]
    return shlex.join(["python", "-m", "evenq_proofs.storage", *words])


async def _run(job: Job, only: str) -> Tally:
    options = options_of(job)
    places = range(job.shard, 1 << 30, job.stride)
    match job.kind:
        case "crash":
            return await crashes.crash_all(await _trace(job), operations=places, seeds=job.more, only=only)
        case "again":
            return await crashes.crash_again(await _trace(job), operations=places, seeds=job.more, only=only)
        case "alice":
            grain = job.shard & ~511
            places = range(job.shard - grain, 1 << 30, job.stride)
            return await crashes.alice(await _trace(job), operations=places, grain=grain, cap=job.more, only=only)
        case "fault":
            count = await faults.count_operations(options, job.name, seed=job.seed, operations=job.operations)
            at = range(job.shard, count, job.stride)
            return await faults.fail_each(options, job.name, at=at, seed=job.seed, operations=job.operations, only=only)
        case "full":
            return await faults.fill_each(options, shard=job.shard, stride=job.stride, seed=job.seed, only=only)
    trace = await _trace(job)
    image = _image(trace)
    damages: Iterator[Damage]
    match job.kind:
        case "truncation":
            damages = itertools.islice(damage.truncations(image), job.shard, None, job.stride)
        case "flip":
            damages = damage.flips(image, offset=job.shard, stride=job.stride)
        case "fuzz":
            damages = damage.mutations(image, random.Random(job.seed), job.more)
        case _:
            raise ValueError(job.kind)
    clean = job.name != "killed"
    return await damage.damage_all(damages, trace.history, options, clean=clean, at=len(trace.ops), only=only)


def options_of(job: Job) -> StoreOptions:
    """Of the store that a job works on."""
    options = BIG_OPTIONS if job.kind == "flip" else OPTIONS
    return options if job.flush == "sync" else asynchronous(options)


_kept: dict[tuple[object, ...], Trace] = {}


async def _trace(job: Job) -> Trace:
    """The workload of a job, kept for the next shard."""
    options = options_of(job)
    key = (options, job.seed, job.operations, job.name)
    if key not in _kept:
        _kept.clear()
        sizes = BIG if job.kind == "flip" else SIZES
        _kept[key] = await record(
            options, seed=job.seed, operations=job.operations, sizes=sizes, kill=job.name == "killed"
        )
    return _kept[key]


def _image(trace: Trace) -> Image:
    machine = Machine()
    for op in trace.ops:
        machine.apply(op)
    return machine.files()
