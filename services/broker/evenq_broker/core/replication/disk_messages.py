"""What a copy of a group says to people about its disk: what to do differs from a broker that is alone."""

from __future__ import annotations

from pathlib import Path

from evenq.errors import StoreCorrupted, StoreError, StorePoisoned

__all__ = ["copy_ends", "lead_elsewhere", "unusable"]


def copy_ends(error: BaseException, broker_name: str, broker_id: int) -> BaseException:
    """The last words of a copy: `error`, and for a disk that is broken or damaged what the group does and what is to be
    done.
    """
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
        f"copy {broker_id} of {broker_name} ends: {error.message}. The other copies go on, and one in sync leads "
        "(`evenq cluster show`). If the disk is broken, start this copy on another one with an empty folder: it copies "
        "everything that was acknowledged from them"
    )


def lead_elsewhere(broker_name: str) -> str:
    """For a leader that refuses messages for want of space."""
    return (
        f"`evenq broker move-leader {broker_name}` lets another copy in sync lead and take messages, if its disk has "
        "more room"
    )


def unusable(folder: Path, error: OSError) -> StoreError:
    """For a start whose folder cannot be read."""
    return StoreError(
        f"the data folder {folder} cannot be used ({error.strerror or error}): check its owner, mode and mount; if its "
        "disk is broken, start this copy on another one with an empty folder, and it copies everything from the others"
    )
