"""What a look into a data folder can find: a place, what it means, what to do next.

Findings are plain values. `Harm` orders them by what they cost; only `NOTE` leaves a folder clean, because a start
takes care of it and nothing that was promised is gone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

__all__ = ["Findings", "Harm", "StoreFinding"]

KEPT_OF_A_KIND: Final = 50


class Harm(StrEnum):
    """What a finding costs."""

    NOTE = "harmless"
    """A start puts it right and nothing is lost."""
    REBUILT = "rebuilt"
    """A derived file is wrong; a start, or a start after `repair --apply`, makes it again from the log."""
    FOREIGN = "foreign"
    """Not a file of a store."""
    WRONG = "wrong"
    """A rule of the format is broken, but no message is missing by it."""
    LOST = "lost"
    """Stored data is missing or cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreFinding:
    """One thing that is not as it should be."""

    kind: str
    """A word for programs, such as `torn-tail`."""
    harm: Harm
    file: str
    """Path within the data folder."""
    byte: int | None = None
    """Place in the file; None if the whole file is meant."""
    log_offset: int | None = None
    """Place in the log, if it has to do with one."""
    what: str
    """What is wrong and what it means; one or two sentences."""
    advice: str
    """What to do next."""

    @property
    def place(self) -> str:
        """File and byte, for people."""
        where = self.file if self.byte is None else f"{self.file} at byte {self.byte}"
        return where if self.log_offset is None else f"{where} (log offset {self.log_offset})"


@dataclass(slots=True)
class Findings:
    """A list that stays small: of each kind the first fifty are kept, the others counted."""

    listed: list[StoreFinding] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)

    def add(self, finding: StoreFinding) -> None:
        """Take one more."""
        count = self.counts[finding.kind] = self.counts.get(finding.kind, 0) + 1
        if count <= KEPT_OF_A_KIND:
            self.listed.append(finding)

    @property
    def unlisted(self) -> int:
        """How many were only counted."""
        return sum(self.counts.values()) - len(self.listed)

    @property
    def clean(self) -> bool:
        """Whether nothing but notes was found."""
        return all(finding.harm is Harm.NOTE for finding in self.listed)
