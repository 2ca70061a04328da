"""Resolution of options (`group`, `earliest`, `latest`, a time, a JSON object) to one queue offset per queue.

Called on the driver by both readers, with the brokers' answers about their queues. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from evenq.errors import IllegalOffset, SettingsError
from evenq.model.queue import MessageQueue
from pyspark_evenq.options.offsets import EARLIEST_MARK, LATEST_MARK, OffsetSpec, Place
from pyspark_evenq.plan.planner import Bounds, Trimmed


class DataLost(IllegalOffset):
    """Messages that were to be read are gone, and failOnDataLoss is on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueState:
    """State of one queue as its broker reports it."""

    bounds: Bounds
    committed: int
    """The group's progress, -1 if it never committed here."""
    times: Mapping[int, int] = field(default_factory=dict)
    """Ms since the epoch -> first offset stored then or later, the end of the queue without such a message."""


def resolve(
    spec: OffsetSpec,
    states: Mapping[MessageQueue, QueueState],
    *,
    without_commit: Place,
    left_out: Collection[MessageQueue] = (),
) -> dict[MessageQueue, int]:
    """Returns one offset per queue of `states`; `without_commit` for queues where the group never committed. Offsets of
    the options and the group's progress are returned unchanged, even if the broker does not have them: the caller
    decides. Queues in `left_out` exist and get no offset. Raises SettingsError for an offset of a queue that does not
    exist, and for a time that must have a message but has none.
    """
    unknown = [
        *sorted((set(spec.offsets) | set(spec.times)) - set(states) - set(left_out)),
        *sorted(set(spec.topics) - {queue.topic for queue in (*states, *left_out)}),
    ]
    if unknown:
        raise SettingsError(
            f"an offset or a time is given for {unknown[0]}, which is not a readable queue of the topics subscribed to"
        )
    positions = {}
    for queue, state in states.items():
        if time_ms := spec.time_of(queue):
            positions[queue] = _at_time(queue, state, time_ms, must_match=spec.must_match)
            continue
        offset = spec.offset_of(queue)
        if offset is not None and offset >= 0:
            positions[queue] = offset
            continue
        place = {None: spec.place, EARLIEST_MARK: Place.EARLIEST, LATEST_MARK: Place.LATEST}[offset]
        positions[queue] = _at(place, state, without_commit)
    return positions


def vouched(spec: OffsetSpec, queue: MessageQueue, state: QueueState) -> bool:
    """Returns whether a copy that may lack the newest messages can resolve the option: an offset within its bounds, or
    a time at or after which it has a message. `latest` is its own end.
    """
    if time_ms := spec.time_of(queue):
        return state.times.get(time_ms, state.bounds.high) < state.bounds.high
    offset = spec.offset_of(queue)
    return offset is None or offset < 0 or state.bounds.low <= offset <= state.bounds.high


def _at_time(queue: MessageQueue, state: QueueState, time_ms: int, *, must_match: bool) -> int:
    offset = state.times.get(time_ms, state.bounds.high)
    if must_match and offset >= state.bounds.high:
        raise SettingsError(
            f"no message of {queue} was stored at {time_ms} ms or later; give an earlier time, or "
            "startingOffsetsByTimestampStrategy=latest to begin such a queue at its end"
        )
    return offset


def _at(place: Place, state: QueueState, without_commit: Place) -> int:
    if place is Place.GROUP:
        if state.committed >= 0:
            return state.committed
        place = without_commit
    return state.bounds.low if place is Place.EARLIEST else state.bounds.high


def loss_of(gone: Trimmed) -> DataLost:
    if gone.anew:
        return DataLost(
            f"data loss: {gone.queue} was to be read at offset {gone.position}, but topic {gone.queue.topic} was "
            f"deleted or created again on broker {gone.queue.broker_name}, or the broker lost its store: its offsets "
            f"{gone.bounds.low} to {gone.bounds.high} (exclusive) are other messages; set failOnDataLoss=false to read "
            "those from the first, or start with a new checkpoint",
            min_offset=gone.bounds.low,
            max_offset=gone.bounds.high,
        )
    if gone.regrown:
        return DataLost(
            f"data loss: {gone.queue} was read up to offset {gone.position}, but now has other messages there: "
            f"broker {gone.queue.broker_name} lost the end of the queue, which has grown to {gone.bounds.high} since; "
            "set failOnDataLoss=false to read the new messages, or start with a new checkpoint",
            min_offset=gone.bounds.low,
            max_offset=gone.bounds.high,
        )
    return DataLost(
        f"data loss: {gone.queue} was to be read at offset {gone.position}, the broker has offsets {gone.bounds.low} "
        f"to {gone.bounds.high} (exclusive); set failOnDataLoss=false to continue with those",
        min_offset=gone.bounds.low,
        max_offset=gone.bounds.high,
    )
