"""A store that may have lost confirmed records is a new store (R10); one that never entered an epoch has confirmed none."""

from __future__ import annotations

import pytest
from evenq_broker.core.replication.config import LastStop, Mode, keeps_identity


@pytest.mark.parametrize(
    ("mode", "stop", "kept"),
    [
        (Mode.REPL_SYNC, None, False),
        (Mode.REPL_SYNC, LastStop(clean=False, boot_id="x"), True),
        (Mode.REPL_MEMORY, LastStop(clean=True, boot_id="x"), True),
        (Mode.REPL_MEMORY, LastStop(clean=False, boot_id="now"), True),
        (Mode.REPL_MEMORY, LastStop(clean=False, boot_id="x"), False),
        (Mode.REPL_MEMORY, LastStop(clean=False, boot_id="x", acted=False), True),
    ],
)
def test_an_unclean_stop_of_the_machine_makes_a_new_store_where_memory_counts(
    mode: Mode, stop: LastStop | None, kept: bool
) -> None:
    assert keeps_identity(mode, stop, boot_id="now") is kept
