"""The store's proofs as a list of jobs, in two sizes: one for every day, one for a release.

A job is data, so it can go to another process; its name says all that is needed to run it again. `run_job` is what the
tests call; `python -m evenq.testing.storage` runs a whole size over the machine's cores and keeps a ledger.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

from evenq.store import FlushMode, StoreOptions
from evenq.testing.storage import crashes, damage, faults
from evenq.testing.storage.damage import Damage
from evenq.testing.storage.judge import Tally
from evenq.testing.storage.machine import Image, Machine
from evenq.testing.storage.session import OPTIONS, asynchronous
from evenq.testing.storage.small_parts import small_parts
from evenq.testing.storage.workload import SIZES, Trace, record

__all__ = ["KINDS", "Job", "jobs", "run_job"]

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

    def __str__(self) -> str:
        """Stable: a test's id."""
        words = [self.kind, self.flush, f"seed{self.seed}", f"{self.shard}of{self.stride}"]
        return "-".join([*words, self.name.replace(" ", "_").replace(",", "")] if self.name else words)


def jobs(*, full: bool) -> list[Job]:
    """All jobs of one size."""
    return list(_full() if full else _fast())


def _fast() -> Iterator[Job]:
    for flush in FlushMode:
        for shard in (0, 17):
            yield Job("crash", flush, 1, 200, shard, 35, 2)
        yield Job("again", flush, 1, 60, 3, 140)
        yield Job("alice", flush, 1, 60, 512, 3, 24)
        yield Job("alice", flush, 1, 60, 4097, 3, 24)
    for name in ("", "killed"):
        yield Job("truncation", "sync", 1, 100, 7, 40, name=name)
        yield Job("flip", "sync", 2, BIG_OPERATIONS, 0, 997, name=name)
        for seed in range(4):
            yield Job("fuzz", "async" if seed % 2 else "sync", seed, 60, 0, 1, 200, name=name)
    for name in faults.FAULTS:
        yield Job("fault", "sync", 1, 60, 1, 8, name=name)
        yield Job("fault", "async", 2, 60, 2, 16, name=name)


def _full() -> Iterator[Job]:
    for flush in FlushMode:
        for seed in range(1, 4):
            for shard in range(16):
                yield Job("crash", flush, seed, 200, shard, 16, 6)
        for shard in range(32):
            yield Job("again", flush, 4, 60, shard, 32, 2)
        for grain in (512, 4096):
            for seed in range(5, 7):
                for shard in range(8):
                    yield Job("alice", flush, seed, 60, grain + shard, 8, 1 << 12)
        for seed in range(7, 9):
            for name in faults.FAULTS:
                yield Job("fault", flush, seed, 80, 0, 1, name=name)
    for name in ("", "killed"):
        for shard in range(16):
            yield Job("truncation", "sync", 9, 200, shard, 16, name=name)
        for shard in range(64):
            yield Job("flip", "sync", 10, BIG_OPERATIONS, shard, 64 if not name else 640, name=name)
        for seed in range(100, 140):
            yield Job("fuzz", "async" if seed % 2 else "sync", seed, 40 + seed % 50, 0, 1, 500, name=name)


def run_job(job: Job) -> Tally:
    """Run one job in this process."""
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)  # a store that starts on ruins says so each time
    try:
        with small_parts():
            tally = asyncio.run(_run(job))
    finally:
        logging.disable(level)
    tally.violations = [f"{job}: {violation}" for violation in tally.violations]
    return tally


async def _run(job: Job) -> Tally:
    options = options_of(job)
    places = range(job.shard, 1 << 30, job.stride)
    match job.kind:
        case "crash":
            return await crashes.crash_all(await _trace(job), operations=places, seeds=job.more)
        case "again":
            return await crashes.crash_again(await _trace(job), operations=places, seeds=job.more)
        case "alice":
            grain = job.shard & ~511
            places = range(job.shard - grain, 1 << 30, job.stride)
            return await crashes.alice(await _trace(job), operations=places, grain=grain, cap=job.more)
        case "fault":
            count = await faults.count_operations(options, job.name, seed=job.seed, operations=job.operations)
            at = range(job.shard, count, job.stride)
            return await faults.fail_each(options, job.name, at=at, seed=job.seed, operations=job.operations)
        case "full":
            return await faults.fill_each(options, shard=job.shard, stride=job.stride, seed=job.seed)
    trace = await _trace(job)
    image = _image(trace)
    damages: Iterator[Damage]
    match job.kind:
        case "truncation":
            damages = itertools.islice(damage.truncations(image), job.shard, None, job.stride)
        case "flip":
            damages = damage.flips(image, offset=job.shard, stride=job.stride)
        case "fuzz":
            damages = damage.mutations(image, random.Random(job.seed), job.more)  # noqa: S311 - a seed
        case _:
            raise ValueError(job.kind)
    clean = job.name != "killed"
    return await damage.damage_all(damages, trace.history, options, clean=clean, at=len(trace.ops))


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
