"""From calls on the network and listeners to lines of history: the only place that knows which call means what.

Judges nothing. A call that was refused is reported too, for the story.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from evenq_proofs.sim import SimProcess
from evenq_proofs.sim.history import Kind

from evenq.model import MessageQueue
from evenq.wire.stubs.evenq.v1 import assignment_pb2, common_pb2, data_pb2, groups_pb2

OK, NOTHING_NEW = 20000, 40401

Add = Callable[..., None]


class Watching:
    """What has been seen; also which messages are finished, so that a world can end as soon as all are."""

    def __init__(self, add: Add, topic_of: Callable[[SimProcess, int], str]) -> None:
        self._add = add
        self._topic_of = topic_of
        self._finished: dict[str, set[int]] = {}
        self._decided: dict[str, tuple[int, int]] = {}

    def all_finished(self, queues: Mapping[str, int]) -> bool:
        """True if every message of these queues was finished."""
        return all(len(self._finished.get(queue, ())) >= count for queue, count in queues.items())

    def started(self, process: SimProcess, queue: str, offset: int) -> None:
        """A listener was given a message."""
        self._add(Kind.START, process.host, queue, offset)

    def done(self, process: SimProcess, queue: str, offset: int) -> None:
        """A listener finished it."""
        self._finished.setdefault(queue, set()).add(offset)
        self._add(Kind.DONE, process.host, queue, offset)

    def seen(self, server: SimProcess, caller: str, method: str, request: bytes, answer: bytes | None) -> None:
        """A call came (answer None) or was answered."""
        match method, answer:
            case "/evenq.v1.Data/Pull", bytes():
                self._pulled(caller, request, answer)
            case "/evenq.v1.Data/CommitOffsets", bytes():
                response = data_pb2.CommitOffsetsResponse.FromString(answer)
                if response.status.code != OK:
                    asked = data_pb2.CommitOffsetsRequest.FromString(request)
                    for one in asked.offsets:
                        self._refused(caller, one.queue, f"commit {one.offset}: {response.status.message}")
            case "/evenq.v1.Groups/LockQueues", bytes():
                self._locked(caller, request, answer)
            case "/evenq.v1.Groups/UnlockQueues", None:
                for queue in groups_pb2.UnlockQueuesRequest.FromString(request).queues:
                    self._add(Kind.UNLOCK, caller, _name(queue))
            case "/evenq.v1.Assignment/Query", bytes() if server.host.startswith("rb"):
                self._decision(server, request, answer)
            case _:
                pass

    def _pulled(self, caller: str, request: bytes, answer: bytes) -> None:
        response = data_pb2.PullResponse.FromString(answer)
        if response.status.code == NOTHING_NEW:
            return
        asked = data_pb2.PullRequest.FromString(request)
        if response.status.code == OK:
            self._add(Kind.PULL, caller, _name(asked.queue), asked.offset, f"to {response.next_offset}")
        else:
            self._refused(caller, asked.queue, f"pull {asked.offset}: {response.status.message}")

    def _locked(self, caller: str, request: bytes, answer: bytes) -> None:
        response = groups_pb2.LockQueuesResponse.FromString(answer)
        if response.status.code != OK:
            for queue in groups_pb2.LockQueuesRequest.FromString(request).queues:
                self._refused(caller, queue, f"lock: {response.status.message}")
        for one in response.queues:
            if one.granted:
                self._add(Kind.GRANT, caller, _name(one.queue), one.committed)
            else:
                self._refused(caller, one.queue, f"lock: held by {one.holder}")

    def _decision(self, server: SimProcess, request: bytes, answer: bytes) -> None:
        response = assignment_pb2.AssignmentResponse.FromString(answer)
        asked = assignment_pb2.AssignmentRequest.FromString(request)
        pair = f"{asked.group}/{asked.topic}"
        generation = (response.generation.epoch, response.generation.counter)
        if response.known and self._decided.get(pair) != generation:
            self._decided[pair] = generation
            self._add(Kind.DECIDED, server.name, pair, text=f"{generation[0]}.{generation[1]}")

    def _refused(self, caller: str, queue: common_pb2.Queue, text: str) -> None:
        self._add(Kind.REFUSED, caller, _name(queue), text=text)


def _name(queue: common_pb2.Queue) -> str:
    return str(MessageQueue(queue.topic, queue.broker_name, queue.queue_id))
