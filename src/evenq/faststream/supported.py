"""The versions of FastStream that this package works with.

FastStream has no public interface for brokers of other packages: its own brokers and this one derive from classes in
`faststream._internal`, which may change in any release (decision 136). So the range is closed at the next minor
version, and a version outside of it is refused by name instead of failing in the middle of a program.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from evenq.errors import Unsupported
from evenq.runtime.extras import missing

OLDEST = (0, 7, 6)
"""First version with the classes that this package derives from."""
BELOW = (0, 8)
"""First version that was not released when this package was tested."""


def check_faststream(installed: str | None = None) -> None:
    """Raises Unsupported if FastStream is missing or its version is outside of the range. None: the installed one."""
    if installed is None:
        try:
            installed = version("faststream")
        except PackageNotFoundError:
            raise Unsupported(missing("evenq.faststream", "faststream")) from None
    if not OLDEST <= _numbers(installed) < BELOW:
        oldest, below = (".".join(map(str, bound)) for bound in (OLDEST, BELOW))
        raise Unsupported(
            f"evenq.faststream works with faststream {oldest} and later below {below}, and {installed} is installed: "
            f"pip install 'faststream>={oldest},<{below}'"
        )


def _numbers(text: str) -> tuple[int, ...]:
    """Returns the leading numbers: (0, 8, 0) of `0.8.0rc1`."""
    numbers = []
    for part in text.split(".")[:3]:
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        numbers.append(int(digits))
    return tuple(numbers)
