"""Texts about the disk of a copy of a group; the advice differs from that for a broker without copies."""

from __future__ import annotations

from pathlib import Path

from evenq.errors import StoreCorrupted, StoreError, StorePoisoned


def copy_ends(error: BaseException, broker_name: str, broker_id: int) -> BaseException:
    """Returns the last error of a copy; for a broken or damaged disk it has what the group does and what to do."""
    if isinstance(error, StoreCorrupted):
        return StoreCorrupted(
            f"copy {broker_id} of {broker_name} ends: {error.message}. When another copy leads (`evenq cluster show`), "
            "start this one again: it takes damaged records from there. If that does not help, start it with an empty "
            "folder: it copies everything from the leader",
            log_offset=error.log_offset,
        )
    if not isinstance(error, StorePoisoned):
        return error
    return StorePoisoned(
        f"copy {broker_id} of {broker_name} ends: {error.message}. The other copies continue, and one in sync leads "
        "(`evenq cluster show`). If the disk is broken, start this copy on another one with an empty folder: it copies "
        "everything that was acknowledged from them"
    )


def lead_elsewhere(broker_name: str) -> str:
    """Returns advice for a leader that refuses messages for lack of space."""
    return (
        f"`evenq broker move-leader {broker_name}` lets another copy in sync lead and take messages, if its disk has "
        "more room"
    )


def unusable(folder: Path, error: OSError) -> StoreError:
    return StoreError(
        f"the data folder {folder} cannot be used ({error.strerror or error}): check its owner, mode and mount; if its "
        "disk is broken, start this copy on another one with an empty folder, and it copies everything from the others"
    )
