"""The offset that Spark keeps in its checkpoint: the end of a batch in each queue.

JSON: `{"v":1,"q":{topic:{broker:{"0":end}}},"from":{...}}`. Other keys:
- `from`, shaped as `q`: starts of queues that do not begin at the end of the previous batch. These are all queues in
  the first batch, later new queues and queues that lost data. So a replay reads the same messages at any time.
- `uid` (`{topic:{broker:uid}}`): the broker's id of the queues' content. With another uid, the same offset is another
  message.
- `lost` (shaped as `q`) and `away` (`{topic:{broker:[0]}}`), for users and listeners: the number of messages left out
  because they are gone, and the queues left out because no broker serves them.
- `gen`: number of moves by operators and of batches with gained queues.
- `mark` (`{topic:{broker:{"0":[offset,mark]}}}`): identifies the message before an offset, mostly the last one read. It
  differs in a queue that lost its end and grew again.
Equal states give equal text (sorted keys); otherwise Spark would run empty batches. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from evenq.errors import Unsupported
from evenq.model.queue import MessageQueue

VERSION = 1
Value = TypeVar("Value")
Positions = Mapping[MessageQueue, int]
Uids = Mapping[tuple[str, str], str]
"""(topic, broker name) -> id of its queues' content, only for comparison; not known without an entry."""


class OffsetMark(NamedTuple):
    """The broker's mark of the message before an offset."""

    offset: int
    text: str

    @property
    def store_ms(self) -> int:
        return int(self.text.partition(".")[0], 16)


def place_of(queue: MessageQueue) -> tuple[str, str]:
    return queue.topic, queue.broker_name


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOffset:
    """The end of one batch."""

    ends: Positions
    """One past the last message read, per queue."""
    starts: Positions = field(default_factory=dict)
    """Start of the batch, for queues where it is not the end of the previous batch."""
    uids: Uids = field(default_factory=dict)
    lost: Positions = field(default_factory=dict)
    """Queue -> messages that this batch left out because they are gone; 0: their number is not known."""
    away: Collection[MessageQueue] = frozenset()
    """Queues that had no broker when this batch was planned."""
    marks: Mapping[MessageQueue, OffsetMark] = field(default_factory=dict)
    """Queue -> mark of a message that was read, the last one if the broker answered; not known without an entry."""
    generation: int = 0
    """Number of moves, by operators or to gained queues. Without it, a move back to the start of a batch would give an
    old offset again, and Spark would see nothing new."""

    def to_json(self) -> dict[str, Any]:
        document: dict[str, Any] = {"v": VERSION, "q": _nested(self.ends)}
        if self.starts:
            document["from"] = _nested(self.starts)
        if self.uids:
            uids: dict[str, dict[str, str]] = {}
            for topic, broker in sorted(self.uids):
                uids.setdefault(topic, {})[broker] = self.uids[topic, broker]
            document["uid"] = uids
        if self.lost:
            document["lost"] = _nested(self.lost)
        if self.away:
            ids: dict[str, dict[str, list[int]]] = {}
            for queue in sorted(self.away):
                ids.setdefault(queue.topic, {}).setdefault(queue.broker_name, []).append(queue.queue_id)
            document["away"] = ids
        if self.marks:
            document["mark"] = _nested({queue: [*mark] for queue, mark in self.marks.items()})
        if self.generation:
            document["gen"] = self.generation
        return document

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> StreamOffset:
        """Parses an offset. Raises Unsupported if another version of the format wrote it."""
        version = document.get("v")
        if version != VERSION:
            raise Unsupported(
                f"the checkpoint holds an offset of version {version!r}, this pyspark_evenq reads version {VERSION}; "
                "run the version of evenq that wrote it, or start with a new checkpoint"
            )
        uids = document.get("uid", {})
        return cls(
            ends=_flat(document["q"]),
            starts=_flat(document.get("from", {})),
            uids={(topic, broker): uid for topic, brokers in uids.items() for broker, uid in brokers.items()},
            lost=_flat(document.get("lost", {})),
            away=frozenset(
                MessageQueue(topic, broker, queue_id)
                for topic, brokers in document.get("away", {}).items()
                for broker, ids in brokers.items()
                for queue_id in ids
            ),
            marks={queue: OffsetMark(*mark) for queue, mark in _flat(document.get("mark", {})).items()},
            generation=document.get("gen", 0),
        )


def _nested(positions: Mapping[MessageQueue, Value]) -> dict[str, dict[str, dict[str, Value]]]:
    document: dict[str, dict[str, dict[str, Value]]] = {}
    for queue in sorted(positions):
        document.setdefault(queue.topic, {}).setdefault(queue.broker_name, {})[str(queue.queue_id)] = positions[queue]
    return document


def _flat(document: Mapping[str, Mapping[str, Mapping[str, Value]]]) -> dict[MessageQueue, Value]:
    return {
        MessageQueue(topic, broker, int(queue_id)): offset
        for topic, brokers in document.items()
        for broker, queues in brokers.items()
        for queue_id, offset in queues.items()
    }
