"""Number of times that brokers handed each message to members of the present group, read from the calls on the network.

A message may be handed to a member that is killed before its listener is called. Brokers then presume that delivery: the
next member gets the message as attempt 2, although no listener of the group had it (decision 22). So the attempt of a
message does not count listener calls, but it is at most the number of hand-outs. A higher one is left from a deleted
group of the same name.

A broker that restarts does not know how far it answered the holder of a queue. If that holder was killed, the broker
presumes a delivery of every message of the queue, also of those that it never handed out.
"""

from __future__ import annotations

from collections import Counter

from evenq.model import MessageQueue
from evenq.wire.stubs.apache.rocketmq.v2 import service_pb2
from evenq.wire.stubs.evenq.v1 import data_pb2, groups_pb2


class HandOuts:
    """Counts by queue and body."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, int]] = Counter()
        self._granted: dict[str, set[MessageQueue]] = {}
        """Queues whose lock a member got, by client id."""
        self._lost: set[MessageQueue] = set()
        """Queues whose lock a killed member may have had."""
        self._presumed: Counter[str] = Counter()
        """Restarts of a broker with such a lock, by queue."""

    def of(self, body: int, queue: str) -> int:
        """Times that the message was handed out from this queue, or may be presumed to have been."""
        return self._counts[queue, body] + self._presumed[queue]

    def seen(self, host: str, caller: str, method: str, request: bytes, answer: bytes | None) -> None:
        """A call came (answer None) or was answered."""
        match method, answer:
            case "/evenq.v1.Data/Pull", bytes():
                asked = data_pb2.PullRequest.FromString(request).queue
                queue = str(MessageQueue(asked.topic, asked.broker_name, asked.queue_id))
                self._counts.update((queue, int(one.body)) for one in data_pb2.PullResponse.FromString(answer).messages)
            case "/apache.rocketmq.v2.MessagingService/ReceiveMessage", bytes():
                frame = service_pb2.ReceiveMessageResponse.FromString(answer)
                if frame.HasField("message"):
                    one = frame.message
                    queue = str(MessageQueue(one.topic.name, host, one.system_properties.queue_id))
                    self._counts[queue, int(one.body)] += 1
            case "/evenq.v1.Groups/LockQueues", bytes():
                granted = [one.queue for one in groups_pb2.LockQueuesResponse.FromString(answer).queues if one.granted]
                self._granted.setdefault(caller, set()).update(
                    MessageQueue(one.topic, one.broker_name, one.queue_id) for one in granted
                )
            case _:
                pass

    def killed(self, member: str) -> None:
        """A member ended without a release of its queues."""
        self._lost |= self._granted.pop(member, set())

    def started(self, broker: str) -> None:
        """A broker starts, perhaps again."""
        self._presumed.update(str(queue) for queue in self._lost if queue.broker_name == broker)

    def group_deleted(self) -> None:
        """What is handed out from now on is for another group."""
        for kept in (self._counts, self._granted, self._lost, self._presumed):
            kept.clear()
