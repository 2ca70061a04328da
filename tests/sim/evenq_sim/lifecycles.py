"""The world of the seeds from `LIFECYCLES` on: what `evenq_sim.world` has, and operators who delete and make again.

An operator's call goes through the network to a living broker, as a command's does. Producers know where queues are at
the moment, and send on to a topic that was deleted, as producers with an old route do. What was sent, and what
listeners were given, is kept here for `evenq_proofs.sim.lifecycle_checks`.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Any

from evenq_broker.core.delivery.queue_progress import READY
from evenq_broker.settings import BrokerSettings
from evenq_proofs.sim import ProcessNet, SimProcess
from evenq_proofs.sim.checks import Problem
from evenq_proofs.sim.history import Kind
from evenq_proofs.sim.lifecycle_checks import LifecycleEnding, Run, Sent, judge_lifecycles, wanted
from evenq_proofs.sim.loop import ProcessClock

from evenq.allocation import by_name
from evenq.client.loops.consumers.pushing import PushLoop, PushPlan
from evenq.client.options import PushOptions
from evenq.client.rpc.messages import encode
from evenq.client.rpc.sessions import RpcConsumerCalls
from evenq.errors import Error
from evenq.model import FilterExpression, Message, MessageModel, MessageQueue, ReceivedMessage
from evenq.wire.status import check
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2 as v2
from evenq.wire.stubs.apache.rocketmq.v2 import service_pb2
from evenq.wire.stubs.evenq.v1 import admin_pb2, groups_pb2
from evenq_sim.away import LATER, undead, while_away
from evenq_sim.hand_outs import HandOuts
from evenq_sim.lifecycle_plan import LifecyclePlan
from evenq_sim.lite_reader import LiteReader
from evenq_sim.open_faults import known
from evenq_sim.places import StoragePlaces
from evenq_sim.staged_query import StagedQuery
from evenq_sim.v2_clients import PushMember, V2Calls, address_of
from evenq_sim.world import GROUP, TOPIC, Node, World

ADMIN = "/evenq.v1.Admin/"
BOUND_MS = 45_000
"""After the last step everything is read and nothing held within this: a lost v2 client is given up after 13 s, and its
messages then take a slow listener's time."""
IDLE_MS, LONGEST_MS = 20_000, 240_000
"""A world goes on for so long after the last listener began, at most for the second time in all."""
TRIES = 20
AGAIN_MS = 500
BEGINS_MS = 2_000
"""A group of members that join begins at all brokers within this."""
GROUP_DELETED = (LATER, "no consumer group")
"""What says that a deletion is done: here at least, or by a call whose answer was lost."""
DEFAULT_QUEUES = BrokerSettings.model_fields["default_queues"].default
LANES, LANE_PAUSE_MS = 4, 300
OPERATIONS = frozenset({"widen", "narrow", "recreate", "delete", "new", "drain", "put"})
"""First words of steps that are an operator's, one at a time."""
LITE_TOPICS = ("ann", "bob", "hall")
DELAY_MS_MAX = 6_000
RETRY_MS = 1_000
HURRY_MS = 300
BROKERS_MAX = 4
BROKER_NAMES = [f"broker-{letter}" for letter in "abcdefghij"]


class LifecycleWorld(World):
    """The cluster and its operators."""

    plan: LifecyclePlan

    def __init__(self, plan: LifecyclePlan, *, show_open: bool) -> None:
        super().__init__(plan)
        self._show_open = show_open
        self.sent: dict[int, Sent] = {}
        self.runs: list[Run] = []
        self.running: dict[str, list[Run]] = {}
        self.group_life = 1
        self.wanted_from_us = 0 if plan.from_last or plan.readers == "lite" else -1
        """With `from_last`: when the members of the group's present life had all queues; 0: not yet."""
        self.queues = plan.queues
        self.places = StoragePlaces(self.topic_uid)
        self.hand_outs = HandOuts()
        self.net._seen = self._seen
        self.busy_until_ms = 0.0
        """Until then producers hurry: what goes wrong around a change goes wrong within milliseconds."""
        self.narrowed = False
        self.group_made_ms = -float(BEGINS_MS)
        self.access_points: dict[str, frozenset[str]] = {}
        """By client: names of the brokers that it was started with."""
        self.query: StagedQuery | None = None
        self.retired: dict[str, str] = {}
        """Uid that the topic had on each broker that was drained and stopped."""
        self.deleted: set[str] = set()
        """Uids of topics that were deleted while a broker was away."""
        self.must_hear: dict[tuple[str, str], None] = {}
        self.heard: dict[tuple[str, str], None] = {}
        """(member, lite topic) whose end a consumer must learn of, and did."""
        self.operator = ProcessNet(self.net, SimProcess("operator", self.loop))
        self.operating = asyncio.Lock()
        self.counted = 0

    def judged(self, ending: Any) -> list[Problem]:
        """What the rules say, but for open faults."""
        problems = judge_lifecycles(self.sent.values(), self.runs, ending)
        return [problem for problem in problems if self._show_open or not known(self.plan, problem)]

    def _seen(self, server: SimProcess, caller: str, method: str, request: bytes, answer: bytes | None) -> None:
        self.watching.seen(server, caller, method, request, answer)
        self.places.seen(server, method, request, answer)
        self.hand_outs.seen(server.host, caller, method, request, answer)

    def topic_uid(self, process: SimProcess) -> str:
        """Of the topic at a broker; empty: it is not there."""
        topic = self.node_of(process).app.broker.catalog.topics.get(TOPIC)
        return "" if topic is None else topic.uid

    def now_us(self) -> int:
        """World time."""
        return round(self.loop.time() * 1_000_000)

    # ------------------------------------------------------------------------------------------------ programs

    def broker_settings(self, process: SimProcess) -> BrokerSettings:
        """As in the other worlds, but for what plans of this family choose."""
        # A member that joins between the deletion of its group and the operator's next command makes the group itself.
        return (
            super()
            .broker_settings(process)
            .model_copy(
                update={
                    "auto_create_topics": self.plan.auto_create,
                    "default_start_from": "LAST" if self.plan.from_last else "FIRST",
                }
            )
        )

    async def _prepare(self, node: Node) -> None:
        if node is self._of("broker")[0]:
            await self.clock.sleep_ms(1_500)  # until all know each other
            await self.make_topic()
            await self.make_group()

    def _member(self, process: SimProcess) -> Any:
        makers = {"own": self._own_member, "push": self._push_member, "lite": self._lite_member}
        return makers[self.plan.readers](process)

    def _lite_member(self, process: SimProcess) -> LiteReader:
        clock, rng = self.clock_of(process), self._rng(process)

        async def listen(messages: list[ReceivedMessage]) -> object:
            return await self.listen(process, clock, _given(messages))

        async def ended(name: str) -> None:
            self.heard[process.host, name] = None
            self.add(Kind.FAULT, process.host, text=f"was told that lite topic {name} ended")

        return LiteReader(
            ProcessNet(self.net, process),
            endpoint=";".join(self._access_points(rng, process.host)),
            client_id=process.host,
            clock=clock,
            rng=rng,
            group=GROUP,
            topic=TOPIC,
            lite_topics=LITE_TOPICS,
            listen=listen,
            ended=ended,
        )

    def _push_member(self, process: SimProcess) -> PushMember:
        clock, plan, rng = self.clock_of(process), self.plan, self._rng(process)
        language = rng.choice(("JAVA", "RUST")) if plan.graceful else "JAVA"
        return PushMember(
            V2Calls(ProcessNet(self.net, process), process.host, language),
            clock=clock,
            access_points=[f"{node.name}:8081" for node in self._of("broker")],
            group=GROUP,
            topic=TOPIC,
            language=language,
            ordered=plan.ordered,
            retry_ms=RETRY_MS,
            listen=lambda given: self.listen(process, clock, given),
        )

    def _own_member(self, process: SimProcess) -> PushLoop:
        clock, rng, plan = self.clock_of(process), self._rng(process), self.plan
        net, points = ProcessNet(self.net, process), ";".join(self._access_points(rng, process.host))
        calls = RpcConsumerCalls(net, endpoint=points, client_id=process.host, timeout_ms=1_500)
        options = PushOptions(
            commit_interval_ms=1_000, rebalance_interval_ms=5_000, consume_batch=4, pull_wait_ms=5_000,
            route_refresh_ms=5_000, pull_idle_ms=20_000,
        )  # fmt: skip
        push_plan = PushPlan(
            group=GROUP,
            subscriptions={TOPIC: FilterExpression()},
            model=MessageModel.CLUSTERING,
            strategy=by_name(plan.strategy),
            ask_server=plan.ask_server,
            start_from=None,
            start_timestamp_ms=0,
            options=options,
            ordered=plan.ordered,
            retry_topic=not plan.ordered,
            slots=4,
        )

        async def listen(messages: list[ReceivedMessage]) -> object:
            return await self.listen(process, clock, _given(messages))

        return PushLoop(
            calls, plan=push_plan, client_id=process.host, clock=clock, rng=rng, run_listener=listen, tell=None
        )

    async def listen(self, process: SimProcess, clock: ProcessClock, given: list[tuple[int, str, int, int]]) -> bool:
        """One call of a listener: (body, queue, offset, attempt) of each message; False: it failed."""
        plan, fails = self.plan, False
        first_of = {run.body for run in self.runs}
        work_ms = self._rng(process).uniform(0, plan.work_ms)
        runs: list[Run] = []
        for body, queue, offset, attempt in given:
            run = Run(body, process.host, self.group_life, queue, offset, attempt, start_us=self.now_us())
            run.handed_out = self.hand_outs.of(body, queue)
            runs.append(run)
            self.add(Kind.START, process.host, queue, offset, f"#{body}, attempt {attempt}")
            if body in plan.slow:
                work_ms = plan.slow_ms
            fails |= bool(plan.fail_every and body % plan.fail_every == 0 and body not in first_of)
        self.runs += runs
        self.running.setdefault(process.host, []).extend(runs)
        how = "cut"
        try:
            await clock.sleep_ms(work_ms)
            how = "failed" if fails else "done"
        finally:
            for run in runs:
                run.end_us, run.how = self.now_us(), how
                self.add(Kind.DONE, process.host, run.queue, run.offset, f"#{run.body} {run.how}")
        return not fails

    def _cut(self, name: str) -> None:
        """The member is stopped or dies: what its listeners do from now on excuses others."""
        for run in self.running.pop(name, ()):
            run.excused |= not run.how

    # ------------------------------------------------------------------------------------------------ operators

    async def ask(self, method: str, request: Any, response: Any, *, done: Collection[str] = ()) -> Any:
        """An operator's command, repeated until it is done, as one at a terminal would; an error that says one of `done`
        is enough.
        """
        failure: Error | None = None
        for _ in range(TRIES):
            living = [node for node in self._of("broker") if node.process.running]
            if not living:
                await self.clock.sleep_ms(AGAIN_MS)
                continue
            node = self.rng.choice(living)
            try:
                answer = response.FromString(
                    await self.operator.unary(
                        f"{node.name}:8081", ADMIN + method, request.SerializeToString(), timeout_ms=10_000
                    )
                )
                check(answer.status)
            except Error as error:
                failure = error
                self.add(Kind.REFUSED, "operator", text=f"{method} at {node.name}: {error}")
                if any(text in str(error) for text in done):
                    return response()
                await self.clock.sleep_ms(AGAIN_MS)
            else:
                return answer
        self.add(Kind.FAULT, "operator", text=f"{method} was given up: {failure}")
        return None

    async def make_topic(self) -> None:
        """An operator makes the topic, or completes it."""
        kind = v2.MessageType.Value(self.plan.scene.topic_type)
        request = admin_pb2.CreateTopicRequest(topic=TOPIC, message_type=kind, queues=self.queues)
        await self.ask("CreateTopic", request, admin_pb2.CreateTopicResponse)

    async def make_group(self) -> None:
        """An operator makes the group."""
        request = admin_pb2.CreateGroupRequest(
            group=GROUP,
            ordered=self.plan.ordered,
            start_from="LAST" if self.plan.from_last else "FIRST",
            strategy=self.plan.strategy if self.plan.ask_server else "",
            retry=groups_pb2.RetryPolicy(kind="CUSTOMIZED", delays_ms=[RETRY_MS]),
        )
        await self.ask("CreateGroup", request, admin_pb2.CreateGroupResponse)

    async def _step(self, what: str, lasts_ms: int) -> None:
        if what.split(" ", maxsplit=1)[0] not in OPERATIONS:
            await super()._step(what, lasts_ms)
            return
        async with self.operating:
            self.add(Kind.FAULT, "operator", text=f"{what} (for {lasts_ms} ms)")
            self.busy_until_ms = self.loop.now_ms + lasts_ms + HURRY_MS
            await self._operate(what, lasts_ms)
            self.add(Kind.FAULT, "operator", text=f"{what}: done")

    async def _operate(self, what: str, lasts_ms: int) -> None:
        match what:
            case "widen topic":
                self.queues += self.rng.randint(1, 3)
                # A topic that its first message made has the default number, and may get fewer now.
                self.narrowed |= self.plan.auto_create and self.queues < DEFAULT_QUEUES
                await self._scale()
            case "narrow topic":
                self.queues = max(1, self.queues - 1)
                self.narrowed = True
                await self._scale()
            case "recreate topic":
                request = admin_pb2.DeleteTopicRequest(topic=TOPIC)
                await self.ask("DeleteTopic", request, admin_pb2.DeleteTopicResponse)
                self.add(Kind.FAULT, "operator", text="the topic is deleted")
                await self.clock.sleep_ms(lasts_ms)
                await self.make_topic()
            case "delete topic":
                wanted_by = [one for one in self._of("member") if one.process.running and not one.busy]
                self.must_hear = {(one.name, name): None for one in wanted_by for name in one.app.lite_topics}
                self.heard.clear()
                request = admin_pb2.DeleteTopicRequest(topic=TOPIC)
                await self.ask("DeleteTopic", request, admin_pb2.DeleteTopicResponse)
            case "delete topic-away" | "recreate topic-away" | "delete group-away":
                await while_away(self, what, lasts_ms)
            case "recreate group":
                await self._new_group(lasts_ms)
            case "new broker":
                names = {node.name for node in self._of("broker")}
                # One that joins while all others are away does not know them, so deletions there do not wait for them.
                deletes = any(step.what.startswith(("recreate", "delete")) for step in self.plan.steps)
                up = any(node.process.running for node in self._of("broker"))
                if len(names) < BROKERS_MAX and (up or not deletes):
                    name = next(name for name in BROKER_NAMES if name not in names and name not in self.retired)
                    await self._new("broker", name, self._broker)
                    await self.make_topic()
            case "drain broker":
                await self._drain_broker()
            case "put checkpoint back":
                if self.query is not None:
                    self.query.put_back(self.rng.randint(1, 4))
            case _:
                raise ValueError(f"no step {what!r}")

    async def _drain_broker(self) -> None:
        """A broker is scaled in: it takes nothing more, is read to its end, and stops for good."""
        # A broker is read to its end by groups that it knows to read it; nobody drains one while a group only begins.
        if (left_ms := self.group_made_ms + BEGINS_MS - self.loop.now_ms) > 0:
            await self.clock.sleep_ms(left_ms)
        node = self._pick("broker")
        others = {one.name for one in self._of("broker") if one is not node}
        # A client that has lost all of its access points learns of no new broker, until it is started with others.
        lost = [one.name for one in self._of("member") if not self.access_points.get(one.name, others) & others]
        if node is None or not others or lost:
            return
        request = admin_pb2.DrainBrokerRequest(broker_name=node.name, change=admin_pb2.DrainBrokerRequest.DRAIN)
        for _ in range(TRIES):
            answer = await self.ask("DrainBroker", request, admin_pb2.DrainBrokerResponse)
            if answer is not None and answer.empty and node.process.running and not node.busy:
                node.busy = True
                self.retired[node.name] = self.topic_uid(node.process)
                await self._stop(node)
                del self.nodes[node.name]
                self.add(Kind.FAULT, node.process.name, text="is drained, and gone for good")
                return
            await self.clock.sleep_ms(AGAIN_MS)
        request.change = admin_pb2.DrainBrokerRequest.RESUME
        await self.ask("DrainBroker", request, admin_pb2.DrainBrokerResponse)

    async def _scale(self) -> None:
        request = admin_pb2.ScaleTopicRequest(topic=TOPIC, queues=self.queues)
        for _ in range(TRIES):
            answer = await self.ask("ScaleTopic", request, admin_pb2.ScaleTopicResponse)
            if answer is None or all(
                not one.error and one.entry.read_queues == one.entry.write_queues for one in answer.brokers
            ):
                return
            await self.clock.sleep_ms(AGAIN_MS)

    async def _new_group(self, lasts_ms: int) -> None:
        members = [node for node in self._of("member") if node.process.running and not node.busy]
        for node in members:
            node.busy = True
        await asyncio.gather(*(self._to_node("leave", node, 0) for node in members))
        request = admin_pb2.DeleteGroupRequest(group=GROUP)
        if await self.ask("DeleteGroup", request, admin_pb2.DeleteGroupResponse, done=GROUP_DELETED) is not None:
            self.group_deleted()
        await self.clock.sleep_ms(lasts_ms)
        await self.make_group()
        for _ in members:
            await self._join()
        self.group_made_ms = self.loop.now_ms

    def group_deleted(self) -> None:
        """What listeners get from now on is for another group."""
        self.group_life += 1
        self.hand_outs.group_deleted()
        # What is in closed queues was for groups of their time: a new one does not read it.
        self.wanted_from_us = 0 if self.plan.from_last else self.now_us() if self.narrowed else -1
        self.add(Kind.FAULT, "operator", text="the group is deleted")

    async def _to_node(self, verb: str, node: Node, lasts_ms: int) -> None:
        if node.kind == "member":
            self._cut(node.name)
            if verb == "kill":
                self.hand_outs.killed(node.name)
        await super()._to_node(verb, node, lasts_ms)

    async def _start(self, node: Node) -> None:
        self.hand_outs.started(node.name)
        await super()._start(node)

    # ------------------------------------------------------------------------------------------------ load

    async def _produce(self) -> None:
        process = SimProcess("producer", self.loop)
        net = ProcessNet(self.net, process)
        if self.plan.scene.sends == "staged":
            await process.spawn(self._run_query(net), name="query")
        calls = V2Calls(net, "producer", "JAVA")
        if self.plan.scene.topic_type == "FIFO":
            lanes = (self._send_lane(calls, f"lane-{number}") for number in range(LANES))
            await asyncio.gather(*(process.spawn(lane, name="lane") for lane in lanes))
        publisher = RpcConsumerCalls(net, endpoint="none:1", client_id="producer", timeout_ms=1_000)
        queues: list[MessageQueue] = []
        while True:
            hurried = self.loop.now_ms < self.busy_until_ms
            await self.clock.sleep_ms(self.rng.randint(1, 15) if hurried else self.rng.randint(20, 250))
            queues = self._open_queues() or queues  # a topic that is gone leaves its producers with their old route
            if not queues:
                continue
            queue = self.rng.choice(queues)
            if self.plan.scene.sends == "publish":
                bodies = [self._next() for _ in range(self.rng.choice((1, 1, 2, 5)))]
                process.spawn(self._publish_all(publisher, queue, bodies), name="publish")
            else:
                delay_ms = self.rng.randint(200, DELAY_MS_MAX) if self.plan.scene.topic_type == "DELAY" else 0
                body = self._next(due_us=self.now_us() + delay_ms * 1_000 if delay_ms else 0)
                address = f"{queue.broker_name}:8081"
                process.spawn(self._send(calls, address, body, delay_ms=delay_ms), name="send")

    async def _run_query(self, net: ProcessNet) -> None:
        def brokers() -> list[str]:
            return sorted({queue.broker_name for queue in self._open_queues()})

        def written(row: int, broker: str) -> None:
            self.places.put(row, (broker, self.topic_uid(self.nodes[broker].process)))
            self.acknowledged(row, broker, -1)

        def refused(text: str) -> None:
            self.add(Kind.FAULT, "producer", text=f"refused: {text}")

        self.query = StagedQuery(
            net, self.clock, self.rng, topic=TOPIC, brokers=brokers, fresh=self._next, written=written, refused=refused
        )
        await self.query.run()

    async def _send_lane(self, calls: V2Calls, lane: str) -> None:
        """A message group's producer: the next message when the one before is acknowledged, as order demands."""
        points, number = self._access_points(self.rng, lane), int(lane.rpartition("-")[2])
        route: list[v2.MessageQueue] = []
        while True:
            await self.clock.sleep_ms(self.rng.randint(50, 500))
            body = self._next(message_group=lane)
            while True:
                if not route or self.rng.random() < 0.1:
                    with suppress(Error):
                        route = await calls.route(points, TOPIC)
                if route and await self._send(calls, address_of(route[number % len(route)]), body, lane=lane):
                    break
                route = []
                await self.clock.sleep_ms(LANE_PAUSE_MS)

    async def _send(self, calls: V2Calls, address: str, body: int, *, lane: str = "", delay_ms: int = 0) -> bool:
        message = v2.Message(topic=v2.Resource(name=TOPIC), body=b"%d" % body)
        system = message.system_properties
        system.message_id, system.message_type = f"{body:032x}", v2.NORMAL
        if lane:
            system.message_type, system.message_group = v2.FIFO, lane
        if self.plan.scene.topic_type == "LITE":
            system.message_type, system.lite_topic = v2.LITE, LITE_TOPICS[body % len(LITE_TOPICS)]
        if delay_ms:
            system.message_type = v2.DELAY
            system.delivery_timestamp.FromMilliseconds(self.clock.now_ms() + delay_ms)
        self.sent[body].tries += 1
        try:
            request = service_pb2.SendMessageRequest(messages=[message])
            answer = await calls.ask(address, "SendMessage", request, service_pb2.SendMessageResponse)
            check(answer.entries[0].status)
        except Error as error:
            self.add(Kind.REFUSED, "producer", text=f"#{body} at {address}: {error}")
            return False
        self.acknowledged(body, self.places.of(body)[0], answer.entries[0].offset)
        return True

    def _access_points(self, rng: random.Random, client: str) -> list[str]:
        brokers = [f"{node.name}:8081" for node in self._of("broker")]
        rng.shuffle(brokers)
        # A push consumer sends its heartbeats and its goodbye to the first one only.
        names = [address.partition(":")[0] for address in brokers]
        self.access_points[client] = frozenset(names[:1] if self.plan.readers == "push" else names)
        return brokers

    def _open_queues(self) -> list[MessageQueue]:
        return [
            MessageQueue(TOPIC, node.name, number)
            for node in self._of("broker")
            if node.process.running and node.app is not None and not node.busy
            for topic in [node.app.broker.catalog.topics.get(TOPIC)]
            if topic is not None
            for number in range(topic.write_queues)
        ]

    def _next(self, **more: Any) -> int:
        self.counted += 1
        self.sent[self.counted] = Sent(self.counted, self.now_us(), **more)
        return self.counted

    async def _publish_all(self, calls: RpcConsumerCalls, queue: MessageQueue, bodies: list[int]) -> None:
        encoded = [
            encode(Message(topic=TOPIC, body=b"%d" % body), message_id=f"{body:032x}", born_ms=1, born_host="sim")
            for body in bodies
        ]
        try:
            stored = await calls.publish(f"{queue.broker_name}:8081", queue, encoded, timeout_ms=1_000)
        except Error:
            return
        for body, offset in zip(bodies, stored.offsets, strict=True):
            self.acknowledged(body, str(queue), offset)

    def acknowledged(self, body: int, queue: str, offset: int) -> None:
        """A producer was told that it is stored."""
        message = self.sent[body]
        message.acknowledged_us, message.queue = self.now_us(), queue
        message.place = self.places.of(body)
        self.add(Kind.STORED, "producer", queue, offset, f"#{body}")

    # ------------------------------------------------------------------------------------------------ looks

    async def _watch(self) -> None:
        while True:
            await self.clock.sleep_ms(100)
            if self.wanted_from_us == 0 and self._all_read():
                self.wanted_from_us = self.now_us()
                self.add(Kind.FAULT, "world", text="the group has begun everywhere")

    def _all_read(self) -> bool:
        """The group has a place on every queue: what is sent from now on is for it."""
        if self.plan.readers == "lite":
            return any(node.app.lite_topics for node in self._of("member"))
        for node in self._of("broker"):
            if not node.process.running or node.app is None or node.busy:
                return False
            broker = node.app.broker
            topic, group = broker.catalog.topics.get(TOPIC), broker.catalog.groups.get(GROUP)
            if topic is None or group is None:
                return False
            for number in range(topic.read_queues):
                if broker.ledger.progress.queue(group.group_id, topic.topic_id, number) is None:
                    return False
        return True

    async def _settle(self) -> Any:
        began_ms, until_ms, count = self.loop.now_ms, self.loop.now_ms + BOUND_MS, 0
        while True:
            await self.clock.sleep_ms(250)
            if len(self.runs) > count:  # a long backlog is no fault
                count = len(self.runs)
                until_ms = min(max(until_ms, self.loop.now_ms + IDLE_MS), began_ms + LONGEST_MS)
            ending = self._how_it_ended()
            finished = {run.body for run in self.runs if run.how == "done"}
            whole = (
                not ending.held
                and not ending.unheard
                and all(one.body in finished for one in self.sent.values() if wanted(one, ending))
            )
            if whole or self.loop.now_ms >= until_ms:
                return ending

    def _how_it_ended(self) -> LifecycleEnding:
        brokers = [node for node in self._of("broker") if node.app is not None]
        return LifecycleEnding(
            at_us=self.now_us(),
            graceful=self.plan.graceful,
            ordered=self.plan.ordered,
            uids=self._living_uids(brokers),
            wanted_from_us=self.wanted_from_us or (1 << 62),
            held=tuple(one for node in brokers for one in self._held(node)),
            unheard=tuple(
                f"{name} was not told that lite topic {lite_topic} ended"
                for name, lite_topic in self.must_hear
                if (name, lite_topic) not in self.heard and name in self.nodes and self.nodes[name].process.alive
            )
            + tuple(undead(self, brokers)),
        )

    def _living_uids(self, brokers: list[Node]) -> dict[str, str]:
        """Also of brokers that were drained, if their topic still lives: they went with everything read."""
        if self.must_hear:
            return {}
        uids = {node.name: self.topic_uid(node.process) for node in brokers}
        return {name: uid for name, uid in self.retired.items() if uid in uids.values()} | uids

    def _held(self, node: Node) -> list[tuple[str, str]]:
        """What the broker keeps for members that are gone."""
        living = {one.name for one in self._of("member") if one.process.alive}
        broker = node.app.broker
        held = [
            (str(queue), f"{node.name} keeps the lock of {client_id}, who is gone")
            for _, queue, client_id, _ in broker.membership.locks.holders()
            if client_id not in living
        ]
        for queue in broker.ledger.progress.queues():
            topic = broker.catalog.topics.by_id(queue.topic_id)
            name = str(MessageQueue("" if topic is None else topic.name, node.name, queue.queue_id))
            held += [
                (name, f"{node.name} keeps message {offset} for {entry.client_id}, who is gone")
                for offset, entry in sorted(queue.pending.items())
                if entry.client_id and entry.deadline_ms != READY and entry.client_id not in living
            ]
        return held


def _given(messages: Sequence[ReceivedMessage]) -> list[tuple[int, str, int, int]]:
    return [(int(one.body), str(one.queue), one.queue_offset, one.delivery_attempt) for one in messages]
