"""`evenq top`: polls the cluster, and draws the tables until `q` or Ctrl-C; with `--once` prints them once.

`Screen` is the state of the live view: the effects of keys, and the rows that fit.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from datetime import datetime

from evenq.cli.admin import with_admin
from evenq.cli.output import Listing, Page, ScreenFrame, print_page, redraw, terminal_height
from evenq.cli.top.options import SORT_KEYS
from evenq.cli.top.rates import WINDOW_MS, base_of, top_page
from evenq.cli.top.sampling import ClusterSample, take_sample
from evenq.client.async_admin import Admin
from evenq.errors import BadRequest, Error
from evenq.runtime.clock import Clock, SystemClock
from evenq.runtime.tasks import spawn

SAMPLES_MAX = WINDOW_MS // 200 + 2
"""More than a window has at the shortest interval."""


def run(options: argparse.Namespace) -> None:
    if options.once or options.output.for_programs:
        with_admin(options, lambda admin: _once(options, admin, SystemClock()))
        return
    if not sys.stdout.isatty():
        raise BadRequest("evenq top draws on a terminal; for a script or a pipe: evenq top --once")
    with contextlib.suppress(KeyboardInterrupt):
        with_admin(options, lambda admin: _live(options, admin, SystemClock()))


async def _sample(options: argparse.Namespace, admin: Admin, clock: Clock) -> ClusterSample:
    return await take_sample(admin, limit=options.limit, namespace=options.namespace, clock=clock)


async def _once(options: argparse.Namespace, admin: Admin, clock: Clock) -> None:
    before = await _sample(options, admin, clock)
    await clock.sleep_ms(options.interval * 1000)
    now = await _sample(options, admin, clock)
    print_page(top_page(before, now, sort=options.sort), options.output)


class _Live:
    """The running screen: samples, the newest error, and what the keys chose."""

    def __init__(self, options: argparse.Namespace, admin: Admin, clock: Clock) -> None:
        self._options, self._admin, self._clock = options, admin, clock
        self._samples: deque[ClusterSample] = deque(maxlen=SAMPLES_MAX)
        self._trouble = ""
        self.screen = Screen(sort=options.sort)
        self.changed = asyncio.Event()

    async def poll(self) -> None:
        """Polls for ever. The first error is raised, because nothing can be shown; later ones are shown."""
        while True:
            try:
                self._samples.append(await _sample(self._options, self._admin, self._clock))
                self._trouble = ""
            except Error as error:
                if not self._samples:
                    raise
                self._trouble = f"  {error}"
            self.changed.set()
            await self._clock.sleep_ms(self._options.interval * 1000)

    def press(self, key: str) -> None:
        self.screen = self.screen.press(key)
        self.changed.set()

    def draw(self) -> None:
        """Draws the newest sample; the keys are named below it."""
        if not self._samples:
            return
        now = self._samples[-1]
        page = top_page(base_of(list(self._samples)), now, sort=self.screen.sort, reverse=self.screen.reverse)
        out = ScreenFrame(terminal=True)
        with redirect_stdout(out):
            print_page(
                replace(self.screen.fitting(page, terminal_height() - 6), sentence=page.sentence), self._options.output
            )
        order = f"by {self.screen.sort}{', reversed' if self.screen.reverse else ''}"
        head = f"evenq top {self._options.endpoint}  {datetime.now().astimezone():%H:%M:%S}  {order}{self._trouble}"
        lines = out.getvalue().splitlines()[: max(1, terminal_height() - 5)]
        redraw(head, [*lines, HELP])


async def _live(options: argparse.Namespace, admin: Admin, clock: Clock) -> None:
    live = _Live(options, admin, clock)
    poller = spawn(live.poll(), name="top polls")
    poller.add_done_callback(lambda _: live.changed.set())
    try:
        with _keys(live):
            while not live.screen.ended and not poller.done():
                live.draw()
                await live.changed.wait()
                live.changed.clear()
        if poller.done():
            poller.result()  # raises its error
    finally:
        poller.cancel()
        with contextlib.suppress(asyncio.CancelledError, Error):
            await poller


@contextlib.contextmanager
def _keys(live: _Live) -> Iterator[None]:
    """Reads single keys from the terminal without showing them; none if standard input is not one."""
    if not sys.stdin.isatty():
        yield
        return
    import termios
    import tty

    number = sys.stdin.fileno()
    before = termios.tcgetattr(number)
    loop = asyncio.get_running_loop()

    def pressed() -> None:
        for key in os.read(number, 64).decode(errors="ignore"):
            live.press(key)

    tty.setcbreak(number)
    loop.add_reader(number, pressed)
    try:
        yield
    finally:
        loop.remove_reader(number)
        termios.tcsetattr(number, termios.TCSADRAIN, before)


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
