"""A store whose parts are small, so that a small workload meets all of their borders: consume queue files of 16
entries, timers that leave memory after 6, index files of 16 KiB of log, recovery in pieces of 3,000 bytes.

Constants are replaced in every module that took them; defaults that were bound when a function was made are replaced
there. A part that is not found any more is an error, so that the proofs never go past a border in silence.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from evenq.store import inspection
from evenq.store.timers import pending, runs
from evenq.store.timers.keys import KEY_BYTES

BLOCK_ENTRIES = 4
SIZES = {
    "FILE_ENTRIES": 16, "FILE_BYTES": 320, "PIECE_BYTES": 3_000, "SEARCH_BYTES": 700, "FILING_ENTRIES": 30,
    "BLOCK_BYTES": 16 << 10, "SYNC_EACH_MAX": 2,
    "MERGE_WIDTH": 2, "ENDED_MAX": 5, "BLOCK_ENTRIES": BLOCK_ENTRIES, "PIECE": 16, "VERIFY_BLOCKS": 2,
    "SCAN_MAX": 64, "ROLL_BATCH": 3,
}  # fmt: skip
OF_RUNS = {"BLOCK_BYTES": runs.BLOCK.size + BLOCK_ENTRIES * KEY_BYTES}
TIMERS = {"table_max": 6, "ahead": 2 * BLOCK_ENTRIES, "runs_max": 3}
"""Arguments of `PendingTimers` that are not given."""


@contextmanager
def small_parts() -> Iterator[None]:
    """Small parts for stores opened and used within."""
    modules = [
        module
        for name, module in list(sys.modules.items())
        if name.startswith("evenq.store.") and not name.startswith(inspection.__name__)
    ]
    found = {(module, key): value for module in modules for key, value in SIZES.items() if hasattr(module, key)}
    found |= {(runs, key): value for key, value in OF_RUNS.items()}
    missing = SIZES.keys() - {key for _, key in found}
    defaults = pending.PendingTimers.__init__.__kwdefaults__ or {}
    assert not missing, f"no part of the store is called {missing}"
    assert defaults.keys() == TIMERS.keys(), f"the timers have parts {defaults.keys()}"
    before = {(module, key): getattr(module, key) for module, key in found}
    whole = dict(defaults)
    for (module, key), value in found.items():
        setattr(module, key, value)
    defaults.update(TIMERS)
    try:
        yield
    finally:
        for (module, key), value in before.items():
            setattr(module, key, value)
        defaults.update(whole)
