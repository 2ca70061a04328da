"""`evenq.v1.Admin`: schedules of recurring messages. Any broker passes a call on to the one that keeps the schedule.

A new schedule goes to the home of its message group, or of its name (`model.lanes.home_of`). Two calls for one new name
meet there, unless they give different message groups at the same time: then both groups' homes make one, and a list
shows both. All brokers are queried first: the home may have changed since a schedule was made. While one does not
answer, a new name is refused, because a second schedule of the name would fire too. A new name is looked for twice: a
schedule that is moved during the first look may be seen at neither broker.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from evenq.errors import (
    BadRequest,
    ConnectionFailed,
    HaNotAvailable,
    NotFound,
    PreconditionFailed,
    TopicNotFound,
)
from evenq.model import TopicConfig
from evenq.model.lanes import home_of
from evenq.serving.auth.calls import rpc
from evenq.serving.rpc import Rpc, RpcContext
from evenq.wire.status import check
from evenq.wire.stubs.apache.rocketmq.v2 import service_pb2
from evenq.wire.stubs.evenq.v1 import admin_pb2, peers_pb2
from evenq_broker.core.sending.schedules import MISSED_MAX, KeptSchedule
from evenq_broker.core.state.schedule_records import Missed, Schedule
from evenq_broker.loops.cluster.link import ClusterLink
from evenq_broker.loops.sending.schedule_moves import GIVE, ScheduleMoves
from evenq_broker.loops.sending.schedules import Schedules
from evenq_broker.loops.state.kernel import Kernel
from evenq_broker.loops.wire.scheduled_messages import given, scheduled_message
from evenq_broker.rpc.answers import OK, answers_of, parsed
from evenq_broker.rpc.cluster.forwarding import MARK, forward, owner_of
from evenq_broker.rpc.sending.send import SendHandler, must_be_open

SERVICE = "/evenq.v1.Admin/"


class ScheduleHandler:
    def __init__(
        self,
        kernel: Kernel,
        *,
        cluster: ClusterLink,
        schedules: Schedules,
        moves: ScheduleMoves,
        sending: SendHandler,
    ) -> None:
        self._moves = moves
        self._kernel, self._runtime, self._catalog = kernel, kernel.runtime, kernel.catalog
        self._cluster, self._schedules, self._sending = cluster, schedules, sending

    def rpcs(self) -> list[Rpc]:
        return [
            rpc(SERVICE + "PutSchedule", self.put),
            rpc(SERVICE + "ListSchedules", self.list),
            rpc(SERVICE + "PauseSchedule", self.pause),
            rpc(SERVICE + "RunSchedule", self.run),
            rpc(SERVICE + "DeleteSchedule", self.delete),
            rpc(SERVICE + "MoveSchedule", self.move),
            rpc(GIVE, self.give),
        ]

    async def put(self, data: bytes, context: RpcContext) -> bytes:
        request = parsed(admin_pb2.PutScheduleRequest, data)
        wanted, topic = _definition(request.schedule), request.schedule.topic
        must_be_open(topic)
        owner = await self._holder(topic, wanted.name, context, may_be_new=True)
        if not owner:
            names = self._open(topic)
            if not names:
                raise ConnectionFailed(f"no live broker accepts messages of topic {topic}; try again later")
            owner = home_of(wanted.message_group or wanted.name, names)
        address = self._address(owner, context)
        if address is not None:
            return await forward(self._runtime, address, data, context)
        kept = await self._schedules.put(self._topic(topic), wanted)
        return admin_pb2.PutScheduleResponse(status=OK, state=self._state(kept, whole=True)).SerializeToString()

    async def list(self, data: bytes, _context: RpcContext) -> bytes:
        request = parsed(admin_pb2.ListSchedulesRequest, data)
        if request.name and not request.topic:
            raise BadRequest(f"the schedule {request.name[:80]!r} is named without its topic; give both")
        response = admin_pb2.ListSchedulesResponse(status=OK, schedules=self._here(request.topic, request.name))
        if request.local:
            return response.SerializeToString()
        self._must_exist(request.topic)
        local = admin_pb2.ListSchedulesRequest(topic=request.topic, name=request.name, local=True)
        others = await self._cluster.ask_all(SERVICE + "ListSchedules", local.SerializeToString())
        for part in answers_of(admin_pb2.ListSchedulesResponse, others, silent=response.silent):
            response.schedules.extend(part.schedules)
        response.schedules.sort(key=_order)
        return response.SerializeToString()

    async def pause(self, data: bytes, context: RpcContext) -> bytes:
        request = parsed(admin_pb2.PauseScheduleRequest, data)
        address = await self._elsewhere(request.topic, request.name, context)
        if address is not None:
            return await forward(self._runtime, address, data, context)
        kept = await self._schedules.pause(self._topic(request.topic), request.name, paused=request.paused)
        return admin_pb2.PauseScheduleResponse(status=OK, state=self._state(kept, whole=True)).SerializeToString()

    async def run(self, data: bytes, context: RpcContext) -> bytes:
        request = parsed(admin_pb2.RunScheduleRequest, data)
        address = await self._elsewhere(request.topic, request.name, context)
        if address is not None:
            return await forward(self._runtime, address, data, context)
        topic = self._topic(request.topic)
        kept = self._schedules.known(topic, request.name)
        message_id = request.message_id or f"{self._runtime.rng.getrandbits(136):034X}"
        message = scheduled_message(kept.schedule, topic.name, self._runtime.clock.now_ms(), message_id)
        sent = service_pb2.SendMessageResponse.FromString(
            await self._sending.send(service_pb2.SendMessageRequest(messages=[message]).SerializeToString(), context)
        )
        check(sent.status)
        return admin_pb2.RunScheduleResponse(status=OK, message_id=message_id).SerializeToString()

    async def delete(self, data: bytes, context: RpcContext) -> bytes:
        request = parsed(admin_pb2.DeleteScheduleRequest, data)
        address = await self._elsewhere(request.topic, request.name, context)
        if address is not None:
            return await forward(self._runtime, address, data, context)
        topic = self._topic(request.topic)
        await self._moves.settle(topic, request.name)
        await self._schedules.delete(topic, request.name)
        return admin_pb2.DeleteScheduleResponse(status=OK).SerializeToString()

    async def move(self, data: bytes, context: RpcContext) -> bytes:
        """Is carried out by the broker that takes the schedule. Without a name it is the one that would keep a new
        schedule, so a repetition changes nothing; a move that is not finished is finished first.
        """
        request = parsed(admin_pb2.MoveScheduleRequest, data)
        topic, name = request.topic, request.name
        must_be_open(topic)
        self._must_exist(topic)
        found = await self._entries(topic, name)
        if not found:
            raise _unknown(topic, name)
        names, first = self._open(topic), found[0]
        # A second entry is of the giver, which has not received the end of the move.
        giver = next((one.broker_name for one in found[1:] if one.moving_to == first.broker_name), "")
        to = request.to or first.moving_to or (giver and first.broker_name)
        if to:
            request.to = to
        elif names:
            to = home_of(first.schedule.message_group or name, names)
        if not to:
            raise PreconditionFailed(
                f"no broker accepts messages of topic {topic}, so broker {first.broker_name} keeps schedule {name}; "
                "open one with `evenq broker resume NAME`"
            )
        if to not in {*names, first.broker_name}:
            others = ", ".join(names) or "none"
            raise BadRequest(f"broker {to[:80]!r} does not accept messages of topic {topic}; those that do: {others}")
        if to != self._runtime.settings.broker_name:
            # Only the broker that keeps it is sure to know whether it is drained: it may choose another one.
            if to != first.broker_name:
                request.to = to
            address = self._reached(to)
            return await forward(self._runtime, address, request.SerializeToString(), context)
        source = giver if giver and to == first.broker_name else first.broker_name
        fires = source == first.broker_name and not first.moving_to
        kept = await self._moves.take(self._topic(topic), name, source, fires=fires)
        return admin_pb2.MoveScheduleResponse(status=OK, state=self._state(kept, whole=True)).SerializeToString()

    async def give(self, data: bytes, _context: RpcContext) -> bytes:
        request = parsed(peers_pb2.GiveScheduleRequest, data)
        topic, to = self._topic(request.topic), request.broker_name
        if request.hop:
            await self._moves.gone(topic, request.name, to, uid=request.uid, hop=request.hop)
            return peers_pb2.GiveScheduleResponse(status=OK).SerializeToString()
        schedule = given(await self._moves.give(topic, request.name, to))
        return peers_pb2.GiveScheduleResponse(status=OK, schedule=schedule).SerializeToString()

    # ------------------------------------------------------------------------------------------------ places

    async def _elsewhere(self, topic: str, name: str, context: RpcContext) -> str | None:
        """Returns the address of the broker that keeps the schedule; None: this one. Raises NotFound."""
        return self._address(await self._holder(topic, name, context, may_be_new=False), context)

    async def _holder(self, topic: str, name: str, context: RpcContext, *, may_be_new: bool) -> str:
        """Returns the broker that keeps the schedule; empty: none does, which only a new one may. Raises
        TopicNotFound, NotFound, and HaNotAvailable if it may be at a broker that does not answer.
        """
        own = self._runtime.settings.broker_name
        if MARK in context.headers or any(not one.moving_to for one in self._here(topic, name)):
            return own
        self._must_exist(topic)
        found = await self._find(topic, name) or (await self._find(topic, name) if may_be_new else None)
        if found is None:
            if not may_be_new:
                await self._schedules.settled()  # its deletion here may rest on a record that is not safe yet
                raise _unknown(topic, name)
            return ""
        if found.moving_to:
            raise PreconditionFailed(f"schedule {name} cannot be changed: {found.problem}")
        return found.broker_name

    async def _find(self, topic: str, name: str) -> admin_pb2.ScheduleState | None:
        """Returns the schedule; of one that is being moved, the place where it fires, if there is one. Raises
        HaNotAvailable if it may be at a broker that does not answer.
        """
        found = await self._entries(topic, name)
        return found[0] if found else None

    async def _entries(self, topic: str, name: str) -> Sequence[admin_pb2.ScheduleState]:
        """Returns all brokers' entries of the schedule, the one that fires first. Raises as `_find`."""
        local = admin_pb2.ListSchedulesRequest(topic=topic, name=name, local=True).SerializeToString()
        silent: list[str] = []
        others = await self._cluster.ask_all(SERVICE + "ListSchedules", local)
        parts = answers_of(admin_pb2.ListSchedulesResponse, others, silent=silent)
        found = [*self._here(topic, name), *(one for part in parts for one in part.schedules)]
        if not found and silent:
            raise HaNotAvailable(
                f"the schedule {name[:80]!r} may be at a broker that does not answer ({', '.join(sorted(silent))}); "
                "try again when it is back, or remove a lost broker with `evenq broker forget`"
            )
        return sorted(found, key=_order)

    def _open(self, topic: str) -> Sequence[str]:
        """Returns the brokers that accept messages of the topic."""
        return [at.broker.name for at in self._catalog.routes.route(topic) if at.counts.permission.writable]

    def _address(self, broker: str, context: RpcContext) -> str | None:
        address = owner_of(self._kernel, broker, context, cluster=self._cluster)
        if address is None and broker != self._runtime.settings.broker_name:
            raise _unreachable(broker)
        return address

    def _reached(self, broker: str) -> str:
        """Returns the address of another broker, also for a call that was forwarded."""
        view = self._catalog.routes.reachable(broker, self._runtime.clock.monotonic_ms())
        if view is None:
            raise _unreachable(broker)
        return self._cluster.peers.address_of(view)

    def _topic(self, name: str) -> TopicConfig:
        return self._catalog.read_topic(name)

    def _must_exist(self, topic: str) -> None:
        catalog = self._catalog
        if topic and not catalog.routes.route(topic) and catalog.topics.get(topic) is None:
            raise TopicNotFound(f"no topic {topic!r} on any live broker; create it with `evenq topic create {topic}`")

    # ------------------------------------------------------------------------------------------------ answers

    def _here(self, topic: str, name: str) -> Sequence[admin_pb2.ScheduleState]:
        return [self._state(kept, whole=bool(name)) for kept in self._kept(topic, name)]

    def _kept(self, topic: str, name: str) -> Iterator[KeptSchedule]:
        table = self._schedules.table
        if not topic:
            yield from table
            return
        known = self._catalog.topics.get(topic)
        for kept in [] if known is None else table.of(known.topic_id):
            if name in {"", kept.schedule.name}:
                yield kept

    def _state(self, kept: KeptSchedule, *, whole: bool) -> admin_pb2.ScheduleState:
        schedule = kept.schedule
        definition = admin_pb2.Schedule(
            topic=self._catalog.topic_name(schedule.topic_id),
            name=schedule.name,
            cron=schedule.cron,
            every_ms=schedule.every_ms,
            missed=schedule.missed,
            missed_max=schedule.missed_max,
            body=schedule.body if whole else b"",
            tag=schedule.tag,
            keys=schedule.keys,
            message_group=schedule.message_group,
            properties=dict(schedule.properties) if whole else {},
        )
        return admin_pb2.ScheduleState(
            schedule=definition,
            broker_name=self._runtime.settings.broker_name,
            paused=schedule.paused,
            made_ms=schedule.made_ms,
            next_ms=0 if schedule.paused or schedule.moving_to else kept.next_ms or 0,
            last_ms=schedule.last_ms,
            fired=schedule.fired,
            passed=schedule.passed,
            problem=kept.trouble,
            moving_to=schedule.moving_to,
            body_bytes=len(schedule.body),
        )


def _order(one: admin_pb2.ScheduleState) -> tuple[str, str, bool, str]:
    return one.schedule.topic, one.schedule.name, bool(one.moving_to), one.broker_name


def _unreachable(broker: str) -> ConnectionFailed:
    return ConnectionFailed(f"broker {broker}, which keeps the schedule, is not reachable now; try again later")


def _unknown(topic: str, name: str) -> NotFound:
    return NotFound(f"topic {topic} has no schedule {name[:80]!r}; see `evenq schedule list {topic}`")


def _definition(request: admin_pb2.Schedule) -> Schedule:
    """Returns the requested schedule. Raises BadRequest."""
    try:
        missed = Missed(request.missed or Missed.ONE)
    except ValueError:
        policies = ", ".join(Missed)
        raise BadRequest(f"the policy for missed firings is {request.missed[:40]!r}, it is one of {policies}") from None
    return Schedule(
        topic_id=0,
        name=request.name,
        uid="",
        cron=" ".join(request.cron.split()),
        every_ms=request.every_ms,
        missed=missed,
        missed_max=request.missed_max or (MISSED_MAX if missed is Missed.ALL else 0),
        body=request.body,
        tag=request.tag,
        keys=tuple(request.keys),
        message_group=request.message_group,
        properties=tuple(sorted(request.properties.items())),
    )
