"""Identity of a store: one that may have lost confirmed records must not pass for the old store (R10).

A formatted store is a new one. With REPL_MEMORY a confirmed record may have been in the page cache only. So after an
unclean stop and another start of the kernel the store is a new one, too. The exception is a store that never entered an
epoch. It confirmed nothing (R3), and a group that it was about to found would wait for it for ever. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

from evenq_broker.core.replication.config import Mode


@dataclass(frozen=True, slots=True, kw_only=True)
class LastStop:
    """A store's record of its last stop."""

    clean: bool  # True: everything was synced, and the mark of that was written
    boot_id: str  # the kernel's boot id while it ran
    acted: bool = True  # False: the store never entered an epoch of the group


def keeps_identity(mode: Mode, stop: LastStop | None, *, boot_id: str) -> bool:
    """Returns True if the store is still the one that confirmed its records. `stop` None: it was just formatted."""
    if stop is None:
        return False
    # The same boot of the kernel keeps the page cache over a kill -9. An unknown boot id counts as another one: an
    # identity that is given up needlessly costs a copy, one that is kept wrongly costs acknowledged messages.
    return mode is Mode.REPL_SYNC or stop.clean or not stop.acted or (stop.boot_id == boot_id and bool(boot_id))
