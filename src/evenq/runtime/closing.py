"""Base classes of objects with a `close`, for a `with` block or an `async with` block.

A class that starts on entering overrides `__enter__`; one that ends differently after an error, `__exit__`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class Closing(ABC):
    """An object that its `with` block closes."""

    __slots__ = ()

    @abstractmethod
    def close(self) -> None:
        """Closes the object. A second call does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncClosing(ABC):
    """An object that its `async with` block closes."""

    __slots__ = ()

    @abstractmethod
    async def close(self) -> None:
        """Closes the object. A second call does nothing."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
