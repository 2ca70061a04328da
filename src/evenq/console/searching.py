"""The search of messages: its form, and the link that continues it.

Two ways to continue, because a search by offset has an exact position in each queue, and the others do not:

- Oldest first, without a key: the offset at which each queue continues (`positions` of the result).
- Otherwise: the place of the last message that was shown. The next search begins at its time, and leaves out messages
  up to this place. `same` is the number of shown messages of that millisecond, to search for that many more.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from evenq.client.core.admin.query_views import FoundMessagesView, MessageView
from evenq.console.pages import ROWS, Visit
from evenq.errors import BadRequest
from evenq.model import MessageQueue

OFFSET_MAX = (1 << 63) - 1
QUEUE_MAX = 4_096
SAME_MAX = 900
POSITIONS_CHARACTERS_MAX = 6_000
"""Longest list of positions in a link; it has one for each queue of the topic."""
PREVIEW_BYTES = 400
_UNIT_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_AGE = re.compile(r"(\d{1,12})\s*([smhd])(?:\s+ago)?", re.ASCII)
Place = tuple[int, str, int, int]
"""Store time, broker, queue, offset: the order of results."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundPage:
    """One page of results."""

    messages: Sequence[MessageView]
    silent: Sequence[str]
    next: Mapping[str, str] | None
    """Parameters of the link to the next page; None: this is the last one."""
    truncated: bool = False
    """True: more messages match, and the topic has too many queues for a link that continues."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """A search by topic, and where it continues."""

    topic: str
    key: str
    begin_ms: int
    end_ms: int
    queue: MessageQueue | None
    offset: int | None
    newest_first: bool
    positions: Mapping[MessageQueue, int]
    last: Place | None
    same: int

    @property
    def by_positions(self) -> bool:
        return not self.newest_first and not self.key

    async def page(self, visit: Visit) -> FoundPage:
        """Returns the results. Raises TopicNotFound, BadRequest, or the error of the cluster."""
        begin_ms, end_ms, limit = self.begin_ms, self.end_ms, ROWS
        if not self.by_positions:
            limit += 1 + self.same
            if self.last is not None and self.newest_first:
                end_ms = min(end_ms or self.last[0], self.last[0])
            elif self.last is not None:
                begin_ms = max(begin_ms, self.last[0])
        result = await visit.admin.find_messages(
            self.topic,
            key=self.key,
            begin_ms=begin_ms,
            end_ms=end_ms,
            queue=self.queue,
            offset=self.offset,
            newest_first=self.newest_first,
            limit=limit,
            body_max=PREVIEW_BYTES,
            after=self.positions,
        )
        return self._by_positions(result) if self.by_positions else self._by_place(result, limit)

    def _by_positions(self, result: FoundMessagesView) -> FoundPage:
        text = _positions_text(result.positions) if result.more else ""
        fits = len(text) <= POSITIONS_CHARACTERS_MAX
        return FoundPage(
            messages=result.messages,
            silent=result.silent,
            next={"positions": text} if text and fits else None,
            truncated=not fits,
        )

    def _by_place(self, result: FoundMessagesView, limit: int) -> FoundPage:
        messages = [one for one in result.messages if self.last is None or self._follows(_place(one), self.last)]
        cut = self.newest_first and not self.key and result.more and len(result.messages) < limit  # by their bytes
        more = len(messages) > ROWS or (cut and bool(messages))
        if self.key and more:
            # The index cuts by the order of storing, and may return a part of the last millisecond only.
            messages = [one for one in messages if one.store_ms != messages[-1].store_ms] or messages
        shown = messages[:ROWS]
        if not more:
            return FoundPage(messages=shown, silent=result.silent, next=None)
        last = _place(shown[-1])
        same = sum(one.store_ms == last[0] for one in shown)
        if self.last is not None and self.last[0] == last[0]:
            same += self.same
        return FoundPage(
            messages=shown,
            silent=result.silent,
            next={"last": "~".join(map(str, last)), "same": f"{same}"},
        )

    def _follows(self, place: Place, last: Place) -> bool:
        return place < last if self.newest_first else place > last


def search_of(visit: Visit) -> Search:
    """Returns the search that the address of the page names. Raises BadRequest."""
    topic = visit.query("topic").strip()
    queue = _queue(topic, visit.query("queue").strip())
    offset = visit.number("offset", most=OFFSET_MAX) if visit.query("offset").strip() else None
    if offset is not None and queue is None:
        raise BadRequest("an offset needs its queue: give both, the queue as BROKER/NUMBER")
    now_ms = visit.console.clock.now_ms()
    same = visit.number("same", most=1 << 20)
    if same > SAME_MAX:
        raise BadRequest(
            f"more than {SAME_MAX} messages were stored in the same millisecond; search one queue, by its offset"
        )
    return Search(
        topic=topic,
        key=visit.query("key").strip(),
        begin_ms=time_ms(visit.query("begin"), now_ms=now_ms),
        end_ms=time_ms(visit.query("end"), now_ms=now_ms),
        queue=queue,
        offset=offset,
        newest_first=visit.query("order", "newest") != "oldest",
        positions=_positions(topic, visit.query("positions")),
        last=_last(visit.query("last")),
        same=same,
    )


def time_ms(text: str, *, now_ms: int) -> int:
    """Returns ms since the epoch of an age (`90m`), ISO 8601 (UTC by default) or ms; 0 if empty. Raises BadRequest."""
    stripped = text.strip()
    if not stripped:
        return 0
    age = _AGE.fullmatch(stripped)
    if age is not None:
        return max(0, now_ms - int(age[1]) * _UNIT_MS[age[2]])
    if stripped.isascii() and stripped.isdecimal() and 8 < len(stripped) < 16:
        return int(stripped)
    try:
        moment = datetime.fromisoformat(stripped)
        return max(0, int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1_000))
    except (ValueError, OverflowError):
        raise BadRequest(
            f"{text[:50]!r} is not a time: write an age (30s, 90m, 2h, 7d), ISO 8601 in UTC (2026-01-31T08:00) or ms "
            "since the epoch"
        ) from None


def _place(message: MessageView) -> Place:
    return message.store_ms, message.queue.broker_name, message.queue.queue_id, message.offset


def _queue(topic: str, text: str) -> MessageQueue | None:
    if not text:
        return None
    broker, _, number = text.rpartition("/")
    if not broker or not _is_number(number) or int(number) > QUEUE_MAX:
        raise BadRequest(f"queue is {text[:80]!r}; write BROKER/NUMBER, such as broker-a/0")
    return MessageQueue(topic, broker, int(number))


def _last(text: str) -> Place | None:
    if not text:
        return None
    parts = text.split("~")
    if len(parts) != 4 or not all(map(_is_number, (parts[0], parts[2], parts[3]))):
        raise BadRequest("the link to more messages is not valid; search again")
    return int(parts[0]), parts[1], int(parts[2]), int(parts[3])


def _positions_text(positions: Mapping[MessageQueue, int]) -> str:
    """`broker-a~0.17.1.12~broker-b~0.3`: queue and offset by turns, for each broker."""
    brokers: dict[str, list[str]] = {}
    for queue, offset in positions.items():
        brokers.setdefault(queue.broker_name, []).append(f"{queue.queue_id}.{offset}")
    return "~".join(f"{broker}~{'.'.join(offsets)}" for broker, offsets in brokers.items())


def _positions(topic: str, text: str) -> dict[MessageQueue, int]:
    if not text:
        return {}
    parts = text.split("~")
    positions: dict[MessageQueue, int] = {}
    for broker, numbers in zip(parts[::2], parts[1::2], strict=False):
        values = numbers.split(".")
        if len(values) % 2 or not all(map(_is_number, values)):
            raise BadRequest("the link to more messages is not valid; search again")
        for number, offset in zip(values[::2], values[1::2], strict=True):
            positions[MessageQueue(topic, broker, int(number) % (1 << 31))] = int(offset)
    return positions


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 19
