"""What brokers receive of a decision: each member's share travels with it, so that no member need ask for its own.

A group of a hundred members would else ask two hundred times per change, in the very moment when its queues rest.
What waits for successors travels too, for the leader after this one.
Called by `assignment.py` for each stream; the bytes of a decision are made once for all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from evenq.model import MessageQueue
from evenq.wire.stubs.evenq.v1 import assignment_pb2
from evenq_rebalancer.core.decisions import Decision
from evenq_rebalancer.core.holds import Hold
from evenq_rebalancer.rpc import translation as to

__all__ = ["DecisionEncoder"]

SHARED_QUEUES_MAX = 20_000
"""A decision over more queues is sent without shares: about 60 KB in one message are enough."""
KEPT_MAX = 1_000


class DecisionEncoder:
    """Decisions as bytes, the newest kept."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str], tuple[Decision, bytes]] = {}

    def bytes_of(self, decision: Decision) -> bytes:
        """The decision as the streams carry it."""
        key = (decision.group, decision.topic)
        known = self._kept.get(key)
        if known is not None and known[0] is decision:
            return known[1]
        if len(self._kept) >= KEPT_MAX:
            self._kept.clear()
        data = _message(decision).SerializeToString()
        self._kept[key] = (decision, data)
        return data


def _message(decision: Decision) -> assignment_pb2.Decision:
    message = assignment_pb2.Decision(
        group=decision.group, topic=decision.topic, generation=to.generation_message(decision.generation)
    )
    inputs = decision.inputs
    if inputs.held and inputs.one_owner and len(inputs.held) <= SHARED_QUEUES_MAX:
        message.held.extend(_held(inputs.held))
    if inputs.mode is not None:
        message.set_mode.CopyFrom(to.topic_mode_message(decision.topic, inputs.mode, decision.generation))
    if inputs.one_owner and len(inputs.queues) <= SHARED_QUEUES_MAX:
        message.shares.SetInParent()
        for client_id in inputs.clustering:
            member = message.shares.members.add(client_id=client_id)
            member.share.strategy = decision.strategy
            for broker_name, queue_ids in _by_broker(decision.shares.get(client_id, ())):
                member.share.queues.add(broker_name=broker_name, queue_ids=queue_ids)
    return message


def _held(held: Mapping[MessageQueue, Hold]) -> Iterable[assignment_pb2.HeldPlace]:
    waiting: dict[str, tuple[Hold, list[MessageQueue]]] = {}
    for queue, hold in held.items():
        waiting.setdefault(hold.client_id, (hold, []))[1].append(queue)
    return (to.held_place_message(hold, _by_broker(queues)) for hold, queues in waiting.values())


def _by_broker(queues: Iterable[MessageQueue]) -> Iterable[tuple[str, list[int]]]:
    ids_by_broker: dict[str, list[int]] = {}
    for queue in queues:
        ids_by_broker.setdefault(queue.broker_name, []).append(queue.queue_id)
    return ids_by_broker.items()
