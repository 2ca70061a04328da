"""A machine's files as a crash leaves them: what programs see, what the disk holds for sure, and what lies between.

Bytes and names are apart: a synced file whose name was never synced in its folder is gone after a power loss. Folders
are names too. `cut_power` composes what the next start finds from any choice of the unsynced changes ("units": pieces
of writes at a grain, changes of size, names), as in the ALICE study. Names of one folder reach the disk in their order,
those of different folders in any.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

Image = dict[str, bytes]
"""Files by path."""

Op = tuple[str, "str | int", "str | int", bytes]
"""Kind, path or inode number, second path or place, bytes. Kinds: create, write, truncate, sync, rename, remove,
make_folder, sync_folder, sync_all, forget (a sync that failed: what was not on disk counts as written), nothing.
"""

Unit = tuple[str, int, int, bytes]
"""data: inode number, place, bytes; size: inode number, size; name: index of the change, 0."""


class Inode:
    """A file without its name."""

    __slots__ = ("data", "forgotten", "number", "pending", "synced")

    def __init__(self, number: int, data: bytes = b"") -> None:
        self.number = number
        self.data: bytes | bytearray = data
        """What programs read; a bytearray once it was written to."""
        self.synced: bytes = data
        self.pending: list[tuple[int, bytes | None]] = []
        """Unsynced changes in order: (place, bytes), or (size, None) for a truncation."""
        self.forgotten = False
        """Whether a sync failed: then programs see what no later sync brings to disk, unless it is written again."""

    def writable(self) -> bytearray:
        """The data, to be changed in place."""
        if not isinstance(self.data, bytearray):
            self.data = bytearray(self.data)
        return self.data

    def copy(self) -> Inode:
        """A file of its own with the same two sides."""
        other = Inode(self.number)
        other.data = bytes(self.data)
        other.synced = self.synced
        other.pending = list(self.pending)
        other.forgotten = self.forgotten
        return other


FOLDER: Final = Inode(-1)
"""Stands for a folder among the names."""


def put(data: bytearray, place: int, piece: bytes | None) -> None:
    """Change bytes as a write or (`piece` None) a truncation does."""
    if piece is None:
        data[place:] = bytes(max(0, place - len(data)))
        return
    if place > len(data):
        data.extend(bytes(place - len(data)))
    data[place : place + len(piece)] = piece


class Machine:
    """Files, names, and how far both are on disk."""

    def __init__(self, image: Image | None = None) -> None:
        """`image`: all of it is on disk."""
        self.inodes: list[Inode] = []
        self.names: dict[str, Inode] = {}
        self.pending_names: list[tuple[str, list[tuple[str, Inode | None]]]] = []
        """Unsynced changes of names in order: (folder, [(path, inode or None), ...])."""
        for path, data in (image or {}).items():
            self._folders_of(path)
            self.names[path] = self._inode(data)
        self.durable: dict[str, Inode] = dict(self.names)

    def copy(self) -> Machine:
        """The machine after every process on it was killed: nothing else changes."""
        other = Machine()
        twins: dict[int, Inode] = {-1: FOLDER}
        for inode in self.inodes:
            twins[inode.number] = inode.copy()
        other.inodes = [twins[inode.number] for inode in self.inodes]
        other.names = {path: twins[inode.number] for path, inode in self.names.items()}
        other.durable = {path: twins[inode.number] for path, inode in self.durable.items()}
        other.pending_names = [
            (folder, [(path, twins[inode.number] if inode is not None else None) for path, inode in changes])
            for folder, changes in self.pending_names
        ]
        return other

    def files(self) -> Image:
        """What programs see."""
        return {path: bytes(inode.data) for path, inode in self.names.items() if inode is not FOLDER}

    # -- what programs do ---------------------------------------------------------------------------------------------

    def apply(self, op: Op) -> None:
        """Do one recorded operation."""
        kind, first, second, data = op
        match kind:
            case "write":
                assert isinstance(first, int)
                assert isinstance(second, int)
                inode = self.inodes[first]
                put(inode.writable(), second, data)
                inode.pending.append((second, data))
            case "truncate":
                assert isinstance(first, int)
                assert isinstance(second, int)
                inode = self.inodes[first]
                put(inode.writable(), second, None)
                inode.pending.append((second, None))
            case "sync":
                assert isinstance(first, int)
                self._sync(self.inodes[first])
            case "forget":
                assert isinstance(first, int)
                inode = self.inodes[first]
                inode.forgotten = inode.forgotten or bool(inode.pending)
                inode.pending.clear()
            case "nothing":
                pass
            case _:
                self._name(kind, str(first), str(second))

    def _sync(self, inode: Inode) -> None:
        if not inode.pending:
            return
        if inode.forgotten:
            synced = bytearray(inode.synced)
            for place, piece in inode.pending:
                put(synced, place, piece)
            inode.synced = bytes(synced)
        else:
            inode.synced = bytes(inode.data)
        inode.pending.clear()

    def _name(self, kind: str, path: str, other: str) -> None:
        match kind:
            case "create":
                self._change(path, self._inode(b""))
            case "rename":
                inode = self.names[path]
                # One transaction of the file system, also from one folder to another: durable with the new name.
                self._changes(parent_of(other), [(other, inode), (path, None)])
            case "remove":
                for name in sorted((n for n in self.names if n == path or n.startswith(f"{path}/")), reverse=True):
                    self._change(name, None)
            case "make_folder":
                parts = path.split("/")
                for depth in range(1, len(parts) + 1):
                    name = "/".join(parts[:depth])
                    if name and name not in self.names:
                        self._change(name, FOLDER)
            case "sync_folder":
                kept = []
                for folder, changes in self.pending_names:
                    if folder == path:
                        rename(self.durable, changes)
                    else:
                        kept.append((folder, changes))
                self.pending_names = kept
            case "sync_all":
                for inode in self.inodes:
                    self._sync(inode)
                self.durable = dict(self.names)
                self.pending_names.clear()
            case _:
                raise AssertionError(kind)

    def _change(self, path: str, inode: Inode | None) -> None:
        self._changes(parent_of(path), [(path, inode)])

    def _changes(self, folder: str, changes: list[tuple[str, Inode | None]]) -> None:
        rename(self.names, changes)
        self.pending_names.append((folder, changes))

    def _inode(self, data: bytes) -> Inode:
        self.inodes.append(Inode(len(self.inodes), data))
        return self.inodes[-1]

    def _folders_of(self, path: str) -> None:
        folder = parent_of(path)
        while folder and folder not in self.names:
            self.names[folder] = FOLDER
            folder = parent_of(folder)

    # -- what a power loss leaves -------------------------------------------------------------------------------------

    def units(self, grain: int) -> list[Unit]:
        """Everything unsynced, in pieces that reach the disk or not each on its own."""
        found: list[Unit] = [("name", index, 0, b"") for index in range(len(self.pending_names))]
        for inode in self.inodes:
            for place, data in inode.pending:
                if data is None:
                    found.append(("size", inode.number, place, b""))
                    continue
                start = 0
                while start < len(data):
                    stop = min(len(data), start + grain - (place + start) % grain)
                    found.append(("data", inode.number, place + start, data[start:stop]))
                    start = stop
        return found

    def cut_power(self, units: Sequence[Unit], kept: Callable[[int], bool]) -> Image:
        """Files after a power loss that kept the units whose index `kept` says; units in the order of `units()`."""
        names = dict(self.durable)
        changed: dict[int, bytearray] = {}
        stopped: set[str] = set()
        for index, (kind, first, place, data) in enumerate(units):
            if kind == "name":
                folder, changes = self.pending_names[first]
                if folder not in stopped and kept(index):
                    rename(names, changes)
                else:
                    stopped.add(folder)
            elif kept(index):
                if first not in changed:
                    changed[first] = bytearray(self.inodes[first].synced)
                put(changed[first], place, data if kind == "data" else None)
        image: Image = {}
        for path, inode in names.items():
            if inode is FOLDER or not _reachable(names, path):
                continue
            left = changed.get(inode.number)
            image[path] = bytes(left) if left is not None else inode.synced
        return image


def parent_of(path: str) -> str:
    """The folder that holds a name."""
    return path.rpartition("/")[0]


def rename(names: dict[str, Inode], changes: list[tuple[str, Inode | None]]) -> None:
    """Apply one change of names."""
    for path, inode in changes:
        if inode is None:
            names.pop(path, None)
        else:
            names[path] = inode


def _reachable(names: dict[str, Inode], path: str) -> bool:
    folder = parent_of(path)
    while folder:
        if names.get(folder) is not FOLDER:
            return False
        folder = parent_of(folder)
    return True
