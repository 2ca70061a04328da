"""The state of the live screen of `evenq top`: what the keys change, and which rows fit. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from evenq.cli.output import Listing, Page
from evenq.cli.top.options import SORT_KEYS

HELP = "q quit  sort: n name, i in/s, o out/s, l lag, m members, r reverse  show: t g b"
_SORTS = {key[0]: key for key in SORT_KEYS}
_SECTIONS = {"t": "topics", "g": "groups", "b": "brokers"}
TABLE_LINES = 5
"""Lines of a table besides its rows: title, head, rule, and the lines around it."""
ROWS_MIN = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Screen:
    """Choices of the user and the state of the view."""

    sort: str
    reverse: bool = False
    hidden: frozenset[str] = frozenset()
    """Sections that the user switched off."""
    ended: bool = False

    def press(self, key: str) -> Screen:
        """Returns the screen after a key; unknown keys change nothing."""
        if key in {"q", "Q", "\x03", "\x04"}:
            return replace(self, ended=True)
        if key in _SORTS:
            return replace(self, sort=_SORTS[key], reverse=False)
        if key == "r":
            return replace(self, reverse=not self.reverse)
        if key in _SECTIONS:
            hidden = self.hidden ^ {_SECTIONS[key]}
            return replace(self, hidden=hidden if len(hidden) < len(_SECTIONS) else frozenset())
        return self

    def fitting(self, page: Page, height: int) -> Page:
        """Returns the page with as many rows of each shown section as a terminal of `height` lines has."""
        shown = [one for one in page.listings if one.key not in self.hidden]
        rows = max(0, height - TABLE_LINES * len(shown))
        return replace(
            page, listings=[_cut(one, share) for one, share in zip(shown, _shares(shown, rows), strict=True)]
        )


def _shares(listings: Sequence[Listing], rows: int) -> list[int]:
    """Divides the rows: small sections get what they need, the others an equal part of the rest."""
    shares = [0] * len(listings)
    left, open_ones = rows, sorted(range(len(listings)), key=lambda at: len(listings[at].rows))
    for done, at in enumerate(open_ones):
        fair = max(ROWS_MIN, left // (len(open_ones) - done))
        shares[at] = min(len(listings[at].rows), fair)
        left = max(0, left - shares[at])
    return shares


def _cut(listing: Listing, rows: int) -> Listing:
    if len(listing.rows) <= rows:
        return listing
    return replace(listing, rows=listing.rows[:rows], title=f"{listing.title}, {rows} of {len(listing.rows)}")
