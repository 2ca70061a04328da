"""The consumer groups of this broker, by name and by number.

The journal fills it at the start and with every change (`Broker.create_group`, `delete_group`); handlers and loops
only read. A number is never used twice, so that a handle or a committed offset of a deleted group can never name
another one.
"""

from __future__ import annotations

from evenq.model import GroupConfig

__all__ = ["GroupTable"]


class GroupTable:
    """name -> GroupConfig and number -> GroupConfig."""

    __slots__ = ("_by_id", "_by_name", "_next_id", "version")

    def __init__(self) -> None:
        self._by_name: dict[str, GroupConfig] = {}
        self._by_id: dict[int, GroupConfig] = {}
        self._next_id = 1
        self.version = 0
        """Grows with each change."""

    def get(self, name: str) -> GroupConfig | None:
        """The group of this name, or None."""
        return self._by_name.get(name)

    def by_id(self, group_id: int) -> GroupConfig | None:
        """The group of this number, or None."""
        return self._by_id.get(group_id)

    def all(self) -> list[GroupConfig]:
        """Every group in ascending name."""
        return [self._by_name[name] for name in sorted(self._by_name)]

    def put(self, group: GroupConfig) -> None:
        """Add a group, or replace the one of this name."""
        old = self._by_name.get(group.name)
        if old == group:
            return
        if old is not None:
            self._by_id.pop(old.group_id, None)
        self._by_name[group.name] = group
        self._by_id[group.group_id] = group
        self._next_id = max(self._next_id, group.group_id + 1)
        self.version += 1

    def remove(self, name: str) -> GroupConfig | None:
        """Forget a group; gives it back, or None if it was unknown."""
        group = self._by_name.pop(name, None)
        if group is not None:
            self._by_id.pop(group.group_id, None)
            self.version += 1
        return group

    def __len__(self) -> int:
        return len(self._by_name)

    def next_id(self) -> int:
        """A number that no group of this broker ever had."""
        return self._next_id

    def reserve(self, next_id: int) -> None:
        """Never give numbers below `next_id`: said by a snapshot, which does not know the groups deleted before it."""
        self._next_id = max(self._next_id, next_id)
