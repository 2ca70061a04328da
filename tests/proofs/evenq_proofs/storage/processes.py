"""Jobs over processes, with a line about rate and time left every few seconds."""

from __future__ import annotations

import multiprocessing
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed

from evenq.runtime.clock import SystemClock
from evenq_proofs.storage.campaign import Job, run_job
from evenq_proofs.storage.judge import Tally

PROGRESS_MS = 5_000


def run_all(todo: list[Job], *, processes: int, show: Callable[[str], None]) -> dict[str, Tally]:
    """Run them all; the outcome by kind. A process that ends by itself ends the run with an error."""
    clock = SystemClock()
    started = shown = clock.monotonic_ms()
    tallies: dict[str, Tally] = defaultdict(Tally)
    images = 0
    with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        futures = {pool.submit(run_job, job): job for job in todo}
        for done, future in enumerate(as_completed(futures), 1):
            tally = future.result()
            tallies[futures[future].kind].add(tally)
            images += tally.images
            now = clock.monotonic_ms()
            if now - shown >= PROGRESS_MS:
                shown = now
                seconds = (now - started) / 1000
                left = seconds / done * (len(todo) - done)
                bad = sum(len(tally.violations) for tally in tallies.values())
                show(
                    f"{done}/{len(todo)} jobs, {images} images, {images / seconds:.0f}/s, {left:.0f} s left, {bad} bad"
                )
    return dict(tallies)
