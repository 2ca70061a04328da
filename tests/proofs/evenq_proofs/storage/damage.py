"""Damaged files: cut short, with a flipped bit, overwritten, gone. Each is found (a refusal that names the file) or
does no harm (every message is served with its bytes, every state record is there).

A store that was closed in order knows where its log ends, so nothing may be missing. One that was killed cannot tell
rot in its last unconfirmed records from a torn write: there the log may end at the damage, if nothing left on the disk
says that it went further (`sure_end`).
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from evenq.errors import Error
from evenq.store import StoreOptions
from evenq.store.log.record import HEADER_BYTES, MAGIC_BYTES, frame_at, size_at
from evenq.store.opening import checkpoint
from evenq_proofs.storage.history import NEVER, History
from evenq_proofs.storage.judge import Case, Tally, chosen, judge
from evenq_proofs.storage.machine import Image, Machine
from evenq_proofs.storage.session import Violation
from evenq_proofs.storage.trace_disk import TraceDisk

LOG = "commitlog/"
LAST = 64  # records whose every byte-prefix is tried
ENTRY_BYTES = 20
GO_ON_EVERY = 16
EVERYTHING = 1 << 63


@dataclass(frozen=True, slots=True)
class Damage:
    """One changed image."""

    name: str
    image: Image
    log_offset: int | None
    """First damaged byte of the log; None if the log is whole."""
    frames_max: int = 1 << 30
    """Damaged frames of the log at most."""
    log_last: int = EVERYTHING
    """Last damaged byte of the log."""


async def damage_all(
    damages: Iterator[Damage], history: History, options: StoreOptions, *, clean: bool, at: int, only: str = ""
) -> Tally:
    """Judge each. `clean`: the store was closed in order."""
    tally = Tally()
    everything = len(history.groups)
    for count, damage in enumerate(damages):
        if not chosen(damage.name, only):
            continue
        least, promised = everything, True
        if not clean and damage.log_offset is not None:
            sure = sure_end(damage.image)
            if sure <= damage.log_last:  # what nothing confirms ends there as after a torn write; cancellations, too
                least, promised = before(history, max(sure, damage.log_offset)), False
        rotten = damage.frames_max if damage.log_offset is not None else 0
        case = Case(damage.name, Machine(damage.image), least, everything, at, promised, rotten)
        tally.images += 1
        tally.mutations += 1
        tally.damaged[kind_of(damage.name)] += 1
        try:
            if await judge(case, history, options, go_on=count % GO_ON_EVERY == 0, may_refuse=True) is None:
                tally.refused += 1
        except Violation as violation:
            tally.violations.append(f"{damage.name}: {violation}")
        except Exception as error:  # noqa: BLE001 - anything but an error of ours is a violation
            tally.violations.append(f"{damage.name}: {error!r} is no error of ours")
    return tally


def before(history: History, log_offset: int) -> int:
    """Append calls that lie wholly before a log offset, as far as messages tell."""
    found = 0
    following = NEVER
    for number in range(len(history.groups) - 1, -1, -1):
        group = history.groups[number]
        end = following  # where state and timers lie is not known, but it is before the next message
        if group.messages and group.state is None and not group.timers:
            last = group.messages[-1]
            end = last.log_offset + HEADER_BYTES + len(last.head) + len(last.system)
        if group.messages:
            following = group.messages[0].log_offset
        if end <= log_offset:
            found = max(found, number + 1)
    return found


def sure_end(image: Image) -> int:
    """How far the log was on disk according to all that an image says: checkpoint, snapshots, frames."""
    end = 0
    try:
        loaded = checkpoint.load(TraceDisk(Machine(image)))
        end = loaded.log_offset if loaded is not None else 0
    except Error:
        end = 0
    for path, data in image.items():
        name = path.rpartition("/")[2]
        if path.startswith("snapshot/") and name.isdecimal():
            end = max(end, int(name))
        elif path.startswith(LOG) and name.isdecimal():
            end = max(end, _synced_by_frames(data, int(name)))
    return end


def _synced_by_frames(data: bytes, start: int) -> int:
    end = place = 0
    while (place := data.find(MAGIC_BYTES, place + 1)) >= 0:
        if place < 4:
            continue
        try:
            frame = frame_at(data, place - 4, start + place - 4)
        except Error:
            frame = None
        if frame is not None:
            end = max(end, frame.synced_offset)
    return end


# -- kinds of damage --------------------------------------------------------------------------------------------------


def truncations(image: Image) -> Iterator[Damage]:
    """Every byte-prefix of the last 64 records of each file; of the log, with the files behind it gone and there."""
    for path, data in sorted(image.items()):
        if not path.startswith(LOG):
            first = max(0, len(data) - LAST * ENTRY_BYTES) if path.startswith("consumequeue/") else 0
            for size in range(first, len(data)):
                yield Damage(f"{path} cut to {size}", {**image, path: data[:size]}, None)
    names = sorted(path for path in image if path.startswith(LOG))
    frames = [(path, place) for path in names for place in _frames(image[path])][-LAST:]
    first_place = dict(reversed(frames))
    for path, place in sorted(first_place.items()):
        start = int(path.rpartition("/")[2])
        later = [name for name in names if name > path]
        for size in range(place, len(image[path])):
            whole = {**image, path: image[path][:size]}
            if later:
                yield Damage(f"{path} alone cut to {size}", whole, start + size)
            gone = {name: data for name, data in whole.items() if name not in later}
            yield Damage(f"{path} cut to {size}, and all behind it", gone, start + size)


def _frames(data: bytes) -> list[int]:
    places = []
    place = 0
    while size := size_at(data, place):
        places.append(place)
        place += size
    return places


def flips(image: Image, *, offset: int = 0, stride: int = 1) -> Iterator[Damage]:
    """One bit flipped in each byte (in each `stride`-th from `offset` on), all files one behind the other."""
    place = offset
    base = 0
    for path, data in sorted(image.items()):
        changed = bytearray(data)
        while place - base < len(data):
            index = place - base
            bit = 1 << (place * 5 + index) % 8
            changed[index] ^= bit
            log_offset = int(path.rpartition("/")[2]) + index if path.startswith(LOG) else None
            yield Damage(
                f"{path} byte {index} bit {bit:#x}", {**image, path: bytes(changed)}, log_offset, 1, log_offset or 0
            )
            changed[index] ^= bit
            place += stride
        base += len(data)


def mutations(image: Image, rng: random.Random, count: int) -> Iterator[Damage]:
    """Random damage to one file: bits, stretches of zeros or noise, a moved or doubled stretch, cut, grown, gone."""
    kinds: dict[str, list[str]] = {}
    for path in sorted(image):
        kinds.setdefault(kind_of(path), []).append(path)
    for number in range(count):
        path = rng.choice(rng.choice(list(kinds.values())))
        data = bytearray(image[path])
        kind = rng.choice(["bit", "bits", "zeros", "noise", "copy", "cut", "grow", "drop", "insert", "gone", "empty"])
        size = min(len(data), rng.choice([1, 4, 20, 88, 512, 4096]))
        place = rng.randrange(len(data) - size + 1) if data else 0
        other = rng.randrange(len(data) - size + 1) if data else 0
        match kind:
            case "bit" | "bits":
                for _ in range(1 if kind == "bit" else 5):
                    if data:
                        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            case "zeros":
                data[place : place + size] = bytes(size)
            case "noise":
                data[place : place + size] = rng.randbytes(size)
            case "copy":
                data[place : place + size] = data[other : other + size]
            case "cut":
                del data[place:]
            case "grow":
                data += rng.choice([bytes(size), rng.randbytes(size), bytes(data[:size])])
            case "drop":
                del data[place : place + size]
            case "insert":
                data[place:place] = rng.randbytes(size)
            case "empty":
                data.clear()
        left = {**image, path: bytes(data)}
        if kind == "gone":
            del left[path]
        name = f"{path} {kind} {size} at {place} number {number}"
        first = _first_difference(path, image[path], left.get(path))
        yield Damage(name, left, first, log_last=_last_difference(path, image[path], left.get(path)))


def _last_difference(path: str, old: bytes, new: bytes | None) -> int:
    """Log offset of the last byte that is another one; if bytes moved, there is no last one."""
    if not path.startswith(LOG) or new is None or len(new) != len(old):
        return EVERYTHING
    return int(path.rpartition("/")[2]) + max((n for n in range(len(old)) if old[n] != new[n]), default=0)


def kind_of(name: str) -> str:
    """The kind of a file, by its path."""
    return name.partition(" ")[0].partition("/")[0]


def _first_difference(path: str, old: bytes, new: bytes | None) -> int | None:
    if not path.startswith(LOG):
        return None
    start = int(path.rpartition("/")[2])
    if new is None:
        return start
    same = next((n for n, (one, two) in enumerate(zip(old, new, strict=False)) if one != two), min(len(old), len(new)))
    return start + same
