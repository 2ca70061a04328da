"""Groups of the broker in `conftest`: members with their lines, locks of queues, and moves by operators."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Collection, Iterator
from typing import Any

import grpc

from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2
from evenq.wire.stubs.evenq.v1 import admin_pb2, common_pb2, data_pb2, groups_pb2

OK = definition_pb2.Status(code=definition_pb2.Code.OK)
EMPTY = definition_pb2.Status(code=definition_pb2.Code.MESSAGE_NOT_FOUND)
FENCED = definition_pb2.Status(code=definition_pb2.Code.PRECONDITION_FAILED, message="another member has the queue")
Place = tuple[str, str, int]
"""Group, topic, queue id."""


class FakeGroups:
    """`committed` is the broker's: by group and queue id, of its one topic."""

    def __init__(self, *, name: str, topic: str, committed: dict[tuple[str, int], int]) -> None:
        self._name, self._topic, self._committed = name, topic, committed
        self.changed = threading.Condition()
        self.joins: dict[str, groups_pb2.Join] = {}
        """By client id: who is a member, with what it reported last."""
        self.holders: dict[Place, str] = {}
        self.moved: set[Place] = set()
        """Queues on which the group was moved and that its member does not read from there yet."""
        self.pulls: list[tuple[int, int]] = []
        """Queue id and offset."""
        self.made: list[str] = []
        self.deleted: list[str] = []
        """Groups, by Admin."""
        self.locks: list[groups_pb2.LockQueuesRequest] = []
        self.refuses: definition_pb2.Status | None = None
        """What Admin answers."""
        self._lines: dict[str, queue.SimpleQueue[groups_pb2.SessionEvent | None]] = {}

    def handlers(self) -> dict[str, Any]:
        return {
            "/evenq.v1.Groups/Session": grpc.stream_stream_rpc_method_handler(self._session),
            "/evenq.v1.Groups/ListMembers": grpc.unary_unary_rpc_method_handler(self._list),
            "/evenq.v1.Groups/LockQueues": grpc.unary_unary_rpc_method_handler(self._lock),
            "/evenq.v1.Groups/UnlockQueues": grpc.unary_unary_rpc_method_handler(self._unlock),
            "/evenq.v1.Admin/CreateGroup": grpc.unary_unary_rpc_method_handler(self._create),
            "/evenq.v1.Admin/DeleteGroup": grpc.unary_unary_rpc_method_handler(self._delete),
            "/evenq.v1.Data/Pull": grpc.unary_unary_rpc_method_handler(self._pull),
        }

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait for a state."""
        with self.changed:
            assert self.changed.wait_for(condition, timeout=60)

    def join(self, group: str, client_id: str, *, topics: Collection[str] = (), holds: Collection[int] = ()) -> None:
        """A client else comes, and gets these queues."""
        join = groups_pb2.Join(group=group)
        join.member.client_id = client_id
        for topic in topics:
            join.member.subscriptions.add(topic=topic)
        with self.changed:
            self.joins[client_id] = join
            self.holders |= {(group, self._topic, number): client_id for number in holds}
            self.changed.notify_all()
        self._tell(group)

    def waits(self, group: str, queue_id: int, client_id: str) -> threading.Event:
        """A client stands in line for a queue; set when it has it."""
        has = threading.Event()

        def wait() -> None:
            place = group, self._topic, queue_id
            with self.changed:
                if self.changed.wait_for(lambda: place not in self.holders, timeout=60):
                    self.holders[place] = client_id
                    has.set()

        threading.Thread(target=wait, daemon=True).start()
        return has

    def leave(self, client_id: str, *, keeps: bool = False) -> None:
        """A client goes; `keeps`: without a goodbye, so that its locks stay for a while."""
        with self.changed:
            self.joins.pop(client_id, None)
            if not keeps:
                self.holders = {place: holder for place, holder in self.holders.items() if holder != client_id}
            self.changed.notify_all()
        for group in {join.group for join in self.joins.values()}:
            self._tell(group)

    def cut(self, client_id: str) -> None:
        """The line breaks; the locks stay."""
        self._lines[client_id].put(None)

    def move(self, group: str, queue_id: int, offset: int) -> None:
        """An operator moves the group on a queue."""
        place = group, self._topic, queue_id
        with self.changed:
            self._committed[group, queue_id] = offset
            self.moved.add(place)
        event = groups_pb2.SessionEvent()
        event.offsets_reset.group = group
        event.offsets_reset.queues.add(topic=self._topic, broker_name=self._name, queue_id=queue_id)
        self._lines[self.holders[place]].put(event)

    def refusal(self, request: data_pb2.CommitOffsetsRequest) -> definition_pb2.Status | None:
        """Why progress is not taken: another has one of the queues."""
        for entry in request.offsets:
            holder = self.holders.get((request.group, entry.queue.topic, entry.queue.queue_id), request.client_id)
            if holder != request.client_id:
                return FENCED
        return None

    def ignores(self, group: str, of: common_pb2.Queue) -> bool:
        return (group, of.topic, of.queue_id) in self.moved

    def _session(self, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        join = groups_pb2.SessionRequest.FromString(next(requests)).join
        name, line = join.member.client_id, queue.SimpleQueue[groups_pb2.SessionEvent | None]()
        left = threading.Event()
        context.add_callback(lambda: line.put(None))
        with self.changed:
            self.joins[name], self._lines[name] = join, line
            self.changed.notify_all()
        threading.Thread(target=self._listen, args=(name, requests, line, left), daemon=True).start()
        welcome = groups_pb2.Welcome(
            beat_interval_ms=1_000, session_timeout_ms=10_000, members=self._members(join.group)
        )
        yield groups_pb2.SessionEvent(welcome=welcome).SerializeToString()
        while (event := line.get()) is not None:
            yield event.SerializeToString()
        if self._lines.get(name) is line:
            self.leave(name, keeps=not left.is_set())

    def _members(self, group: str) -> list[groups_pb2.Member]:
        return [join.member for _, join in sorted(self.joins.items()) if join.group == group]

    def _tell(self, group: str) -> None:
        event = groups_pb2.SessionEvent()
        event.members_changed.group = group
        event.members_changed.members.extend(self._members(group))
        for name, join in list(self.joins.items()):
            if join.group == group and name in self._lines:
                self._lines[name].put(event)

    def _listen(self, name: str, requests: Iterator[bytes], line: Any, left: threading.Event) -> None:
        try:
            for encoded in requests:
                request = groups_pb2.SessionRequest.FromString(encoded)
                match request.WhichOneof("request"):
                    case "join":
                        with self.changed:
                            self.joins[name] = request.join
                            self.changed.notify_all()
                        self._tell(request.join.group)
                    case "leave":
                        left.set()
                        break
        except grpc.RpcError:
            pass  # the line broke
        line.put(None)

    def _list(self, encoded: bytes, _context: Any) -> bytes:
        group = groups_pb2.ListMembersRequest.FromString(encoded).group
        return groups_pb2.ListMembersResponse(status=OK, members=self._members(group)).SerializeToString()

    def _lock(self, encoded: bytes, _context: Any) -> bytes:
        request = groups_pb2.LockQueuesRequest.FromString(encoded)
        deadline = time.monotonic() + request.wait_ms / 1000
        with self.changed:
            self.locks.append(request)
            places = [(request.group, wanted.topic, wanted.queue_id) for wanted in request.queues]
            while any(self.holders.get(place, request.client_id) != request.client_id for place in places):
                if not self.changed.wait(max(0.0, deadline - time.monotonic())):
                    break
            answers = []
            for wanted, place in zip(request.queues, places, strict=True):
                holder = self.holders.setdefault(place, request.client_id)
                committed = self._committed.get((request.group, wanted.queue_id), -1)
                granted = holder == request.client_id
                answers.append(
                    groups_pb2.LockedQueue(queue=wanted, granted=granted, holder=holder, committed=committed)
                )
            self.changed.notify_all()
        return groups_pb2.LockQueuesResponse(status=OK, queues=answers).SerializeToString()

    def _unlock(self, encoded: bytes, _context: Any) -> bytes:
        request = groups_pb2.UnlockQueuesRequest.FromString(encoded)
        with self.changed:
            for wanted in request.queues:
                place = request.group, wanted.topic, wanted.queue_id
                if self.holders.get(place) == request.client_id:
                    del self.holders[place]
            self.changed.notify_all()
        return groups_pb2.UnlockQueuesResponse(status=OK).SerializeToString()

    def _create(self, encoded: bytes, _context: Any) -> bytes:
        self.made.append(admin_pb2.CreateGroupRequest.FromString(encoded).group)
        return admin_pb2.CreateGroupResponse(status=self.refuses or OK).SerializeToString()

    def _delete(self, encoded: bytes, _context: Any) -> bytes:
        group = admin_pb2.DeleteGroupRequest.FromString(encoded).group
        if any(join.group == group for join in self.joins.values()):
            read = definition_pb2.Status(code=definition_pb2.Code.BAD_REQUEST, message=f"group {group} has members")
            return admin_pb2.DeleteGroupResponse(status=read).SerializeToString()
        self.deleted.append(group)
        return admin_pb2.DeleteGroupResponse(status=self.refuses or OK).SerializeToString()

    def _pull(self, encoded: bytes, _context: Any) -> bytes:
        request = data_pb2.PullRequest.FromString(encoded)
        place = request.group, request.queue.topic, request.queue.queue_id
        with self.changed:
            self.pulls.append((request.queue.queue_id, request.offset))
            if self._committed.get((request.group, request.queue.queue_id)) == request.offset:
                self.moved.discard(place)
            self.changed.notify_all()
        return data_pb2.PullResponse(status=EMPTY, next_offset=request.offset).SerializeToString()
