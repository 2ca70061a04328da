"""When a store gets a new identity (R10): whatever may have lost confirmed records must not pass for the old store.

A store that was formatted is a new one. With REPL_MEMORY a confirmed record may have been in the page cache only: after
an unclean stop and another start of the kernel it may be gone, so the store is a new one then, too; unless it never
entered an epoch: then it confirmed nothing (R3), and a group that it was about to found would wait for it for ever.
Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

from evenq_broker.core.replication.config import Mode

__all__ = ["LastStop", "keeps_identity"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LastStop:
    """What a store knows of its last stop."""

    clean: bool
    """True: all was synced and the mark of that was written."""
    boot_id: str
    """The kernel's boot id while it ran."""
    acted: bool = True
    """False: the store never entered an epoch of the group."""


def keeps_identity(mode: Mode, stop: LastStop | None, *, boot_id: str) -> bool:
    """True if the store is still the one that confirmed its records. `stop` None: the store was just formatted."""
    if stop is None:
        return False
    # The same boot of the kernel keeps the page cache over a kill -9. An unknown boot id counts as another one: the
    # name may be given up for nothing, which costs a copy, but never kept wrongly, which costs acknowledged messages.
    return mode is Mode.REPL_SYNC or stop.clean or not stop.acted or (stop.boot_id == boot_id and bool(boot_id))
