"""Ownership of a data folder: one process at a time, one broker name permanently.

The lock is the operating system's: it ends with the process, so nothing stale is left. The lock file holds the owner's
pid for people. The identity file is written once, when the folder is created, also by a restore from a backup.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from crc32c import crc32c

from evenq.errors import StoreCorrupted, StoreError, StoreLocked
from evenq.store.io.disk import Disk, read_whole, write_whole
from evenq.store.log import segment

PATH: Final = "identity"
FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class Identity:
    """Identity of a data folder."""

    broker_name: str
    store_id: str
    """Random 128 bits in hexadecimal, created with the folder: they identify a copy or a new folder."""
    segment_bytes: int
    epoch_floor: int = 0
    """Over 0 if the folder was restored from a backup: no record is appended with a lower epoch."""


def acquire(disk: Disk) -> None:
    """Locks the folder. Raises StoreLocked if another process has it, StoreError if it cannot be written."""
    try:
        disk.lock()
    except BlockingIOError as error:
        raise StoreLocked(
            f"the data folder {disk.describe('')} is in use by process {error.args[0] if error.args else '?'}: "
            "stop that broker, or give this one its own --data folder"
        ) from error
    except OSError as error:
        raise StoreError(
            f"the data folder {disk.describe('')} cannot be written ({error.strerror}): check its owner, mode and mount"
        ) from error


@contextmanager
def held(disk: Disk) -> Iterator[None]:
    """Owns the folder for the context. Raises as `acquire`."""
    acquire(disk)
    try:
        yield
    finally:
        disk.unlock()


def identify(disk: Disk, *, broker_name: str, segment_bytes: int) -> Identity:
    """Returns the folder's identity; creates it in a new folder. Raises StoreError if it is another broker's folder."""
    data = read_whole(disk, PATH)
    if data is None:
        if disk.list(segment.FOLDER):
            raise StoreCorrupted(
                f"{disk.describe(PATH)} is missing beside a commit log: restore it, or start with an empty folder"
            )
        identity = new(broker_name, segment_bytes=segment_bytes)
        write(disk, identity)
        return identity
    identity = _parse(disk, data)
    if identity.broker_name != broker_name:
        raise StoreError(
            f"the data folder {disk.describe('')} belongs to broker {identity.broker_name!r}, this one is "
            f"{broker_name!r}: use the same name or another folder"
        )
    return identity


def new(broker_name: str, *, segment_bytes: int, epoch_floor: int = 0) -> Identity:
    return Identity(broker_name, secrets.token_hex(16), segment_bytes, epoch_floor)


def write(disk: Disk, identity: Identity) -> None:
    """Writes the identity of a folder. Raises OSError."""
    text = {
        "format": FORMAT,
        "broker_name": identity.broker_name,
        "store_id": identity.store_id,
        "segment_bytes": identity.segment_bytes,
        **({"epoch_floor": identity.epoch_floor} if identity.epoch_floor else {}),
        "crc32c": _crc(identity),
    }
    write_whole(disk, PATH, json.dumps(text, indent=1).encode())


def load(disk: Disk) -> Identity | None:
    """Returns the identity of any broker's folder, None without one. Raises StoreCorrupted, StoreError."""
    data = read_whole(disk, PATH)
    return _parse(disk, data) if data is not None else None


def _crc(identity: Identity) -> int:
    text = f"{identity.broker_name}\n{identity.store_id}\n{identity.segment_bytes}"
    if identity.epoch_floor:
        text += f"\n{identity.epoch_floor}"
    return crc32c(text.encode())


def _parse(disk: Disk, data: bytes) -> Identity:
    try:
        text = json.loads(data)
        version = text["format"]
        if version == FORMAT:
            identity = Identity(
                str(text["broker_name"]),
                str(text["store_id"]),
                int(text["segment_bytes"]),
                int(text.get("epoch_floor", 0)),
            )
            if text.get("crc32c", _crc(identity)) != _crc(identity):  # the first folders had none
                raise ValueError("its checksum does not fit")
            return identity
    except (ValueError, KeyError, TypeError) as error:
        raise StoreCorrupted(f"{disk.describe(PATH)} does not parse ({error}): restore it from a copy") from error
    raise StoreError(
        f"the data folder {disk.describe('')} has format {version}; this program reads format {FORMAT}: "
        "start a newer program"
    )
