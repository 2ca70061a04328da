"""Table of configs by name and by number: a broker has one for its topics and one for its consumer groups.

The journal fills it at the start and with every change (`Broker.create_topic`, `delete_group` ...); handlers and loops
only read. A number is never used twice, so a handle, a committed offset or a queue folder of something deleted can
never name something else. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, Protocol, TypeVar


class _Named(Protocol):
    @property
    def name(self) -> str: ...


ConfigT = TypeVar("ConfigT", bound=_Named)


class NameTable(Generic[ConfigT]):
    """name -> config and number -> config."""

    __slots__ = ("_by_id", "_by_name", "_id_of", "_next_id", "version")

    def __init__(self, id_of: Callable[[ConfigT], int]) -> None:
        """`id_of`: the number of a config."""
        self._id_of = id_of
        self._by_name: dict[str, ConfigT] = {}
        self._by_id: dict[int, ConfigT] = {}
        self._next_id = 1
        self.version = 0  # grows with each change

    def get(self, name: str) -> ConfigT | None:
        return self._by_name.get(name)

    def by_id(self, number: int) -> ConfigT | None:
        return self._by_id.get(number)

    def all(self) -> list[ConfigT]:
        """Returns every config, ascending by name."""
        return [self._by_name[name] for name in sorted(self._by_name)]

    def names(self) -> Iterable[str]:
        return self._by_name.keys()

    def put(self, config: ConfigT) -> None:
        """Adds a config, or replaces the one of this name."""
        old = self._by_name.get(config.name)
        if old == config:
            return
        if old is not None:
            self._by_id.pop(self._id_of(old), None)
        number = self._id_of(config)
        self._by_name[config.name] = config
        self._by_id[number] = config
        self._next_id = max(self._next_id, number + 1)
        self.version += 1

    def touch(self) -> None:
        """Notes that knowledge about the configs changed, though no config did."""
        self.version += 1

    def remove(self, name: str) -> ConfigT | None:
        """Removes and returns a config; None if it is unknown."""
        config = self._by_name.pop(name, None)
        if config is not None:
            self._by_id.pop(self._id_of(config), None)
            self.version += 1
        return config

    def __len__(self) -> int:
        return len(self._by_name)

    def next_id(self) -> int:
        """Returns a number that nothing in this table ever had."""
        return self._next_id

    def reserve(self, next_id: int) -> None:
        """Reserves all numbers below `next_id`: a snapshot does not have what was deleted before it."""
        self._next_id = max(self._next_id, next_id)
