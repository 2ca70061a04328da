"""A copy of a broker group whose log is cut by an operator is another store to the group.

The group record names the stores that have all that was acknowledged, and any of them may lead by itself. A folder that
lost a part of its log must not be one of those: it would lead, and the other copies would be cut to what it has. With
another id it counts as a new copy, which follows until it has everything. Called by `evenq store repair`, which holds
the folder's lock.
"""

from __future__ import annotations

import json
import secrets
from typing import Any

from evenq_broker.loops.replication.identity import FILE
from evenq_broker.loops.replication.remembered import replace_file

from evenq.errors import StoreError
from evenq.store.io.disk import Disk, read_whole

__all__ = ["give_new_store_id", "is_copy"]


def is_copy(disk: Disk) -> bool:
    """True: the folder is one copy of a broker group."""
    return read_whole(disk, FILE) is not None


def give_new_store_id(disk: Disk) -> None:
    """Its epoch stays: what was promised in it does not depend on the records. Raises StoreError; then nothing has
    changed.
    """
    try:
        fields: dict[str, Any] = dict(json.loads(read_whole(disk, FILE) or b""))
        fields["store_id"] = secrets.token_hex(len(fields["store_id"]) // 2)
        replace_file(disk, FILE, fields)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise StoreError(
            f"{disk.describe(FILE)}, which says which copy of its broker group this folder is, cannot be changed "
            f"({error}), so the log was not cut: start this copy with an empty folder, and it copies everything"
        ) from error
