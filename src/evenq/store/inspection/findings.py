"""Findings about a data folder: a place, what it means, and what to do next.

Findings are plain values. `Harm` orders them by cost. Only `NOTE` leaves a folder clean: a start corrects it, and
nothing that was promised is lost.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

KEPT_OF_A_KIND: Final = 50


class Harm(StrEnum):
    """Cost of a finding."""

    NOTE = "harmless"
    """A start corrects it, and nothing is lost."""
    REBUILT = "rebuilt"
    """A derived file is wrong; a start, or a start after `repair --apply`, builds it again from the log."""
    FOREIGN = "foreign"
    """Not a file of a store."""
    WRONG = "wrong"
    """A rule of the format is broken, but no message is missing because of it."""
    LOST = "lost"
    """Stored data is missing or cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreFinding:
    """One problem of a data folder."""

    kind: str
    """Identifier for programs, such as `torn-tail`."""
    harm: Harm
    file: str
    """Path within the data folder."""
    byte: int | None = None
    """Place in the file; None for the whole file."""
    log_offset: int | None = None
    """Place in the log, if the finding has one."""
    what: str
    """The problem and its meaning, in one or two sentences."""
    advice: str

    @property
    def place(self) -> str:
        where = self.file if self.byte is None else f"{self.file} at byte {self.byte}"
        return where if self.log_offset is None else f"{where} (log offset {self.log_offset})"


@dataclass(slots=True)
class Findings:
    """A bounded list: the first fifty of each kind are kept, the others counted."""

    listed: list[StoreFinding] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)

    def add(self, finding: StoreFinding) -> None:
        count = self.counts[finding.kind] = self.counts.get(finding.kind, 0) + 1
        if count <= KEPT_OF_A_KIND:
            self.listed.append(finding)

    @property
    def unlisted(self) -> int:
        """Number of findings that were only counted."""
        return sum(self.counts.values()) - len(self.listed)

    @property
    def clean(self) -> bool:
        """Whether there are only notes."""
        return all(finding.harm is Harm.NOTE for finding in self.listed)
