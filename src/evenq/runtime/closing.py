"""Things with a `close`, in a `with` block or an `async with` block.

Whatever can be used at once and has to be closed in the end, after success and failure alike, is a `Closing` or an
`AsyncClosing`; a thing that is started on entering overrides `__enter__`, one that ends differently after an error
writes its own `__exit__`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

__all__ = ["AsyncClosing", "Closing"]


class Closing(ABC):
    """Its `with` block closes it."""

    __slots__ = ()

    @abstractmethod
    def close(self) -> None:
        """End it. Closing twice is no error."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncClosing(ABC):
    """Its `async with` block closes it."""

    __slots__ = ()

    @abstractmethod
    async def close(self) -> None:
        """End it. Closing twice is no error."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
