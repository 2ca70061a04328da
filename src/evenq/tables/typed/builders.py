"""Builders of columns: values are appended row by row to plain lists, and become Arrow arrays at the end of a piece.

A row that does not fit is taken back with `cut`, so it costs no second pass. A struct, list or map has builders for its
parts, so no Python object is made for a struct of a row. `Budget` bounds the values that one body can add: a list of a
million empty objects is 3 MB of JSON, but a million values in each column of the struct.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from evenq.tables.typed.columns import TypedColumn
from evenq.tables.typed.values import Misfit

if TYPE_CHECKING:
    import pyarrow as pa

CELLS_MAX: Final = 500_000
"""Values in columns that one body may have."""


class Budget:
    """Values that the current body may still add to lists and maps."""

    def __init__(self) -> None:
        self.left = CELLS_MAX

    def take(self, cells: int, place: str) -> None:
        self.left -= cells
        if self.left < 0:
            raise Misfit("size", place)


class Builder(Protocol):
    """Interface of a builder."""

    def append(self, value: Any) -> None:
        """Adds a value of a body, None for null. Raises Misfit."""
        ...

    def cut(self, count: int) -> None:
        """Keeps the first values only."""
        ...

    def array(self) -> pa.Array:
        """Returns the values as an array, and begins again."""
        ...


class LeafBuilder:
    def __init__(self, column: TypedColumn, convert: Callable[[Any], Any]) -> None:
        self._type, self._convert = column.arrow(), convert
        self._values: list[Any] = []

    def append(self, value: Any) -> None:
        self._values.append(None if value is None else self._convert(value))

    def cut(self, count: int) -> None:
        del self._values[count:]

    def array(self) -> pa.Array:
        import pyarrow as pa

        values, self._values = self._values, []
        return pa.array(values, type=self._type)


class StructBuilder:
    def __init__(
        self,
        column: TypedColumn,
        parts: Sequence[Builder],
        take: Callable[[Any], Iterable[Any]],
    ) -> None:
        """`take` returns the values of the parts of a struct that is not null."""
        self._type, self._parts, self._take = column.arrow(), parts, take
        self._nulls: list[bool] = []

    def append(self, value: Any) -> None:
        values = (None,) * len(self._parts) if value is None else self._take(value)
        self._nulls.append(value is None)
        for part, one in zip(self._parts, values, strict=True):
            part.append(one)

    def cut(self, count: int) -> None:
        del self._nulls[count:]
        for part in self._parts:
            part.cut(count)

    def array(self) -> pa.Array:
        import pyarrow as pa

        nulls, self._nulls = self._nulls, []
        arrays = [part.array() for part in self._parts]
        return pa.StructArray.from_arrays(arrays, fields=list(self._type), mask=pa.array(nulls, pa.bool_()))


class ListBuilder:
    """Lists with one part, and maps with two."""

    def __init__(
        self,
        column: TypedColumn,
        parts: Sequence[Builder],
        take: Callable[[Any], Iterable[Any]],
        budget: Budget,
        place: str,
    ) -> None:
        """`take` returns the elements of a list, or the pairs of a map."""
        self._type, self._parts, self._take, self._place = column.arrow(), parts, take, place
        self._budget, self._cells = budget, column.leaves
        self._ends: list[int] = [0]
        self._nulls: list[bool] = []

    def append(self, value: Any) -> None:
        end = self._ends[-1]
        if value is not None:
            elements = self._take(value)
            count = len(elements)  # type: ignore[arg-type]
            self._budget.take(count * self._cells, self._place)
            if len(self._parts) == 1:
                add = self._parts[0].append
                for element in elements:
                    add(element)
            else:
                for key, element in elements:
                    self._parts[0].append(key)
                    self._parts[1].append(element)
            end += count
        self._ends.append(end)
        self._nulls.append(value is None)

    def cut(self, count: int) -> None:
        del self._ends[count + 1 :]
        del self._nulls[count:]
        for part in self._parts:
            part.cut(self._ends[-1])

    def array(self) -> pa.Array:
        import pyarrow as pa

        ends, nulls = self._ends, self._nulls
        self._ends, self._nulls = [0], []
        starts = [None if null else start for start, null in zip(ends, nulls, strict=False)] + ends[-1:]
        places = pa.array(starts, pa.int32())
        arrays = [part.array() for part in self._parts]
        made = pa.ListArray if len(arrays) == 1 else pa.MapArray
        return made.from_arrays(places, *arrays, type=self._type)
