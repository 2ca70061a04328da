"""The offset that Spark keeps in its checkpoint: where each queue's batch ends.

As JSON: `{"v":1,"q":{topic:{broker:{"0":end}}},"from":{...}}`. `from` has the same shape and names only queues whose
batch does not begin where the last one ended: all of them in the first batch, later new queues and such that lost
data. A logged batch therefore says by itself what it reads, and a replay reads the same, whatever the brokers say by
then. `uid` (`{topic:{broker:uid}}`) says what the offsets count, as brokers name it: with another uid, the same offset
is another message. `lost` (the shape of `q`) and `away` (`{topic:{broker:[0]}}`) are for people and listeners: how many
messages the batch left out because they are gone, and which queues it left out because no broker serves them. `gen`
counts the moves by operators, and the batches with queues that were gained. `mark` (`{topic:{broker:{"0":[offset,
mark]}}}`) says what the message before an offset is, mostly the last one read: a queue that lost its end and grew again
has another one there.
Always true: equal states give equal text (keys are sorted), else Spark would run empty batches. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from evenq.errors import Unsupported
from evenq.model.queue import MessageQueue

__all__ = ["VERSION", "OffsetMark", "Positions", "StreamOffset", "Uids", "place_of"]

VERSION = 1
Value = TypeVar("Value")
Positions = Mapping[MessageQueue, int]
"""A queue offset per queue."""
Uids = Mapping[tuple[str, str], str]
"""By topic and broker name: what the offsets of its queues count there. Only to be compared; without an entry it is not
known."""


class OffsetMark(NamedTuple):
    """What the message before an offset is, as its broker names it."""

    offset: int
    text: str

    @property
    def store_ms(self) -> int:
        """When the message was stored, ms since the epoch."""
        return int(self.text.partition(".")[0], 16)


def place_of(queue: MessageQueue) -> tuple[str, str]:
    """The key in `Uids`."""
    return queue.topic, queue.broker_name


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOffset:
    """The end of one batch."""

    ends: Positions
    """One past the last message read, per queue."""
    starts: Positions = field(default_factory=dict)
    """Where the batch begins, for the queues where that is not the end of the batch before."""
    uids: Uids = field(default_factory=dict)
    lost: Positions = field(default_factory=dict)
    """Messages that this batch left out, by queue, because they are gone; 0: it is not known how many."""
    away: Collection[MessageQueue] = frozenset()
    """Queues that had no broker when this batch was planned."""
    marks: Mapping[MessageQueue, OffsetMark] = field(default_factory=dict)
    """A message that was read, the last one where its broker answered it; without an entry nothing is known."""
    generation: int = 0
    """How often the query was moved, by operators or to queues that it gained: going back to where a batch began must
    not give its offset again, or Spark would see nothing new."""

    def to_json(self) -> dict[str, Any]:
        """Plain values in canonical order."""
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
        """Raises Unsupported if a newer version of this package wrote it."""
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
