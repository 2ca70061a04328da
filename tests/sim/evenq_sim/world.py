"""One world: nameservers, brokers, rebalancers and members, all real, over virtual time and the seeded network.

`play` plays a plan and gives the history with what the checkers say of it. Real: the composition roots of the
three programs with all their loops, cores and stores (on a memory disk), the members' whole engine. Replaced: doors,
network, clocks, disks, the lease record, the listener. Members divide or ask, as the plan says.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from evenq_broker.app import BrokerApp
from evenq_broker.settings import BrokerSettings, StoreSettings
from evenq_nameserver.app import Nameserver
from evenq_nameserver.settings import NameserverSettings
from evenq_proofs.sim import CALLER, History, ProcessClock, ProcessNet, SimNet, SimProcess, VirtualLoop, ended, judge
from evenq_proofs.sim.checks import Ending, Problem
from evenq_proofs.sim.history import Kind
from evenq_rebalancer.app import Rebalancer
from evenq_rebalancer.settings import RebalancerSettings

from evenq.allocation import by_name
from evenq.client.loops.consumers.pushing import PushLoop, PushPlan
from evenq.client.options import PushOptions
from evenq.client.rpc.messages import encode
from evenq.client.rpc.sessions import RpcConsumerCalls
from evenq.errors import Error
from evenq.model import FilterExpression, Message, MessageModel, MessageQueue, ReceivedMessage, StartFrom
from evenq.serving.front.port_openers import PortOpeners
from evenq.store.io.memory_disk import MemoryDisk
from evenq_sim.edges import SimLease, copied, edges_of
from evenq_sim.scenario import Plan
from evenq_sim.watching import Watching

TOPIC, GROUP = "orders", "workers"
BOUND_MS = 20_000
"""After the last fault everything is owned and read to its end within this: the session time-out (4 s), the hold of the
lease (6 s) or a broker's patience with a rebalancer, back-offs of 2 s, a lock's wait of 3 s."""
LOOK_MS = 250


@dataclass(slots=True)
class Node:
    """One program's place; `start` makes what runs there."""

    kind: str
    name: str
    start: Callable[[SimProcess], Any]
    process: SimProcess
    app: Any = None
    ready: asyncio.Task[Any] | None = None
    busy: bool = False
    """A step is at work on it."""
    cut_off: bool = False
    disk: MemoryDisk = field(default_factory=MemoryDisk)
    clock: ProcessClock | None = None
    starts: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of a seed."""

    plan: Plan
    history: History
    problems: list[Problem]
    ended_ms: int

    def story(self) -> str:
        """For a person: the plan, the problems, and how the first one came about."""
        lines = [f"seed {self.plan.seed}: {self.plan}"]
        lines += [f"  {problem}" for problem in self.problems[:10]]
        if len(self.problems) > 10:
            lines.append(f"  ... and {len(self.problems) - 10} more")
        if self.problems:
            first = self.problems[0]
            lines += ["", self.history.story([first.queue], before_us=first.at_us)]
        return "\n".join(lines)


class World:
    """The cluster and what is done to it."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.rng = random.Random(f"world {plan.seed}")
        self.loop = VirtualLoop()
        self.history = History()
        self.watching = Watching(self.add, self.topic_of)
        self.net = SimNet(self.loop, random.Random(f"net {plan.seed}"), seen=self.watching.seen)
        self.nodes: dict[str, Node] = {}
        self.lease: dict[str, Any] = {}
        self.lease_away = False
        self.members_made = 0
        self.clock = ProcessClock(self.loop)

    # ------------------------------------------------------------------------------------------------ what programs need

    def node_of(self, process: SimProcess) -> Node:
        """Where the process runs."""
        return self.nodes[process.host]

    def clock_of(self, process: SimProcess) -> ProcessClock:
        """Its clock."""
        clock = self.node_of(process).clock
        assert clock is not None
        return clock

    def topic_of(self, process: SimProcess, topic_id: int) -> str:
        """Name by id, at a broker."""
        topic = self.node_of(process).app.broker.catalog.topics.by_id(topic_id)
        return "" if topic is None else topic.name

    def add(self, kind: Kind, who: str, queue: str = "", offset: int = -1, text: str = "") -> None:
        """One line of history."""
        self.history.add(round(self.loop.time() * 1_000_000), kind, who, queue, offset, text)

    def _lease_of(self, process: SimProcess) -> SimLease | None:
        if self.plan.rebalancers < 2:
            return None
        node = self.node_of(process)
        return SimLease(self.clock_of(process), self.lease, lambda: not (self.lease_away or node.cut_off))

    def _committed(self, process: SimProcess, _group: int, topic_id: int, queue_id: int, offset: int) -> None:
        if not CALLER.get() or not process.running:
            return
        queue = MessageQueue(self.topic_of(process, topic_id), process.host, queue_id)
        self.add(Kind.COMMIT, CALLER.get(), str(queue), offset)

    # ------------------------------------------------------------------------------------------------ the play

    def play(self) -> Outcome:
        """From the start to the verdict."""
        asyncio.set_event_loop(None)
        try:
            ending = self.loop.run_until_complete(self._play())
        finally:
            self.history.closed = True
            self.loop.finish()
        return Outcome(
            plan=self.plan,
            history=self.history,
            problems=self.judged(ending),
            ended_ms=ending.at_us // 1000,
        )

    def judged(self, ending: Any) -> list[Problem]:
        """What the rules say."""
        return judge(self.history.events, ending)

    async def _play(self) -> Ending:
        plan = self.plan
        self.add(Kind.FAULT, "world", text=str(plan))
        for number in range(plan.nameservers):
            await self._new("nameserver", f"ns{number + 1}", self._nameserver)
        for number in range(plan.rebalancers):
            await self._new("rebalancer", f"rb{number + 1}", self._rebalancer)
        await asyncio.gather(*(self._new("broker", f"broker-{c}", self._broker) for c in "abc"[: plan.brokers]))
        for node in self._of("broker"):
            await node.process.spawn(self._prepare(node), name="prepare")
        await self.clock.sleep_ms(300)
        for _ in range(plan.members):
            await self._join()
            await self.clock.sleep_ms(self.rng.choice((0, 1, 200)))
        watch = self.loop.create_task(self._watch(), name="watch")
        producing = self.loop.create_task(self._produce(), name="produce")
        steps = []
        for step in plan.steps:
            await self._until(step.at_ms)
            steps.append(self.loop.create_task(self._step(step.what, step.lasts_ms), name=step.what))
        await asyncio.gather(*steps)
        await self._until(plan.heal_ms)
        await self._heal()
        await self.clock.sleep_ms(1_000)
        producing.cancel()
        ending = await self._settle()
        if watch.done():
            watch.result()  # it never ends by itself: without it no broker looked at who holds what
        watch.cancel()
        return ending

    async def _settle(self) -> Any:
        until_ms = self.loop.now_ms + BOUND_MS
        while True:
            await self.clock.sleep_ms(LOOK_MS)
            ending = self._ending()
            over = self.loop.now_ms >= until_ms
            if over or all(len(ending.readers[queue]) == 1 for queue in ending.queues):
                if not over and not self.watching.all_finished(ending.queues):
                    continue
                for queue in ending.queues:
                    self.add(Kind.FINAL, "world", queue, text="read by " + ", ".join(ending.readers[queue]))
                return ending

    def _ending(self) -> Ending:
        queues: dict[str, int] = {}
        readers: dict[str, list[str]] = {}
        for node in self._of("broker"):
            topic = node.app.broker.catalog.topics.get(TOPIC) if node.app else None
            for queue_id in range(topic.read_queues if topic else 0):
                queue = str(MessageQueue(TOPIC, node.name, queue_id))
                queues[queue] = node.app.broker.ledger.store.queue_range(topic.topic_id, queue_id)[1]
                readers[queue] = []
        for node in self._of("member"):
            for one in node.app.owned() if node.process.alive else ():
                readers.setdefault(str(one), []).append(node.name)
        return Ending(
            at_us=round(self.loop.time() * 1_000_000),
            graceful=self.plan.graceful,
            queues=queues,
            readers={queue: tuple(names) for queue, names in readers.items()},
        )

    async def _until(self, at_ms: int) -> None:
        await self.clock.sleep_ms(max(0.0, at_ms - self.loop.now_ms))

    # ------------------------------------------------------------------------------------------------ nodes

    def _of(self, kind: str) -> list[Node]:
        return [node for node in self.nodes.values() if node.kind == kind]

    async def _new(self, kind: str, name: str, start: Callable[[SimProcess], Any]) -> Node:
        node = self.nodes[name] = Node(kind, name, start, SimProcess(name, self.loop))
        rate, skew_ms = 1.0, 0
        if self.plan.clocks_off:
            rate, skew_ms = 1 + self.rng.uniform(-0.0005, 0.0005), self.rng.randint(-3_600_000, 3_600_000)
        node.clock = ProcessClock(self.loop, skew_ms=skew_ms, rate=rate, since_ms=self.rng.randint(0, 1_000_000))
        await self._start(node)
        return node

    async def _start(self, node: Node) -> None:
        node.starts += 1
        node.process = SimProcess(f"{node.name}#{node.starts}", self.loop, host=node.name)
        node.disk = copied(node.disk)
        node.ready = node.process.spawn(self._run(node), name=f"start {node.process.name}")
        await asyncio.wait([node.ready])
        node.ready.result()

    async def _run(self, node: Node) -> None:
        node.app = node.start(node.process)
        if node.kind == "member":
            node.app.start()
        else:
            await node.app.start()

    def _kill(self, node: Node) -> None:
        node.process.kill()
        self.net.died(node.process)

    async def _stop(self, node: Node) -> None:
        """As SIGTERM does; killed if it takes longer than Kubernetes' 30 s."""
        process = node.process
        closing = process.spawn(node.app.close(), name=f"close {process.name}")
        await ended(closing, self.clock, within_ms=30_000)
        if closing.done():
            closing.result()
        process.kill()
        self.net.died(process)

    def _rng(self, process: SimProcess) -> random.Random:
        return random.Random(f"{self.plan.seed} {process.name}")

    def _nameserver(self, process: SimProcess) -> Nameserver:
        settings = NameserverSettings(
            host=process.host, port=9876, heartbeat_interval_ms=1_000, expiry_ms=4_000, register_from="*"
        )
        return Nameserver(settings, clock=self.clock_of(process), rng=self._rng(process), edges=self._edges_of(process))

    def _rebalancer(self, process: SimProcess) -> Rebalancer:
        more: dict[str, Any] = {}
        if self.plan.rebalancers > 1:
            more = {"lease": "file:lease", "advertise": f"{process.host}:8083"}
        settings = RebalancerSettings(host=process.host, port=8083, grace_ms=3_000, warm_up_ms=500, **more)
        return Rebalancer(
            settings,
            clock=self.clock_of(process),
            edges=self._edges_of(process),
            lease_of=lambda _: self._lease_of(process),
        )

    def broker_settings(self, process: SimProcess) -> BrokerSettings:
        """Short times, so that a world of twenty seconds sees what takes minutes."""
        plan = self.plan
        return BrokerSettings(
            broker_name=process.host,
            host=process.host,
            advertise=f"{process.host}:8081",
            nameservers=",".join(f"ns{number + 1}:9876" for number in range(plan.nameservers)),
            rebalancer=",".join(f"rb{number + 1}:8083" for number in range(plan.rebalancers)),
            store=StoreSettings(segment_bytes=1 << 17, message_index=False),
            session_beat_interval_ms=1_000,
            session_timeout_ms=4_000,
            register_interval_ms=1_000,
            peer_timeout_ms=1_000,
            drain_ms=5_000,
            trace_bytes=0,
            duplicates_window_ms=0,
        )

    def _broker(self, process: SimProcess) -> BrokerApp:
        net = ProcessNet(self.net, process)
        app = BrokerApp(
            self.broker_settings(process),
            clock=self.clock_of(process),
            rng=self._rng(process),
            net=net,
            edges=self._edges_of(process),
            disk=self.node_of(process).disk,
        )
        app.broker.ledger.progress.on_commit = partial(self._committed, process)
        return app

    def _edges_of(self, process: SimProcess) -> PortOpeners:
        return edges_of(process, self.net, self.clock_of(process))

    async def _prepare(self, node: Node) -> None:
        broker = node.app.broker
        await broker.catalog.create_topic(TOPIC, queues=self.plan.queues)
        strategy = "" if self.plan.ask_server is None else self.plan.strategy
        await broker.catalog.create_group(GROUP, ordered=self.plan.ordered, strategy=strategy)

    async def _join(self) -> None:
        self.members_made += 1
        await self._new("member", f"m{self.members_made}", self._member)

    def _member(self, process: SimProcess) -> PushLoop:
        clock, rng = self.clock_of(process), self._rng(process)
        brokers = [f"{node.name}:8081" for node in self._of("broker")]
        rng.shuffle(brokers)
        calls = RpcConsumerCalls(
            ProcessNet(self.net, process), endpoint=";".join(brokers), client_id=process.host, timeout_ms=1_500
        )
        options = PushOptions(
            commit_interval_ms=1_000,
            rebalance_interval_ms=5_000,
            consume_batch=4,
            pull_wait_ms=5_000,
            route_refresh_ms=5_000,
            pull_idle_ms=20_000,
        )
        plan = PushPlan(
            group=GROUP,
            subscriptions={TOPIC: FilterExpression()},
            model=MessageModel.CLUSTERING,
            strategy=by_name("AVG" if self.plan.strategy == "STICKY" else self.plan.strategy),
            ask_server=self.plan.ask_server,
            start_from=StartFrom.FIRST,
            start_timestamp_ms=0,
            options=options,
            ordered=self.plan.ordered,
            slots=4,
        )

        async def listen(messages: list[ReceivedMessage]) -> object:
            for message in messages:
                self.watching.started(process, str(message.queue), message.queue_offset)
            await clock.sleep_ms(rng.uniform(0, self.plan.work_ms))
            for message in messages:
                self.watching.done(process, str(message.queue), message.queue_offset)
            return True

        return PushLoop(calls, plan=plan, client_id=process.host, clock=clock, rng=rng, run_listener=listen, tell=None)

    # ------------------------------------------------------------------------------------------------ load and looks

    async def _produce(self) -> None:
        process = SimProcess("producer", self.loop)
        calls = RpcConsumerCalls(
            ProcessNet(self.net, process), endpoint="none:1", client_id="producer", timeout_ms=1_000
        )
        queues = [
            MessageQueue(TOPIC, node.name, number) for node in self._of("broker") for number in range(self.plan.queues)
        ]
        count = 0
        while True:
            await self.clock.sleep_ms(self.rng.randint(20, 1_000 // len(queues) + 30))
            queue = self.rng.choice(queues)
            encoded = []
            for _ in range(self.rng.choice((1, 1, 2, 5))):
                count += 1
                message = Message(topic=TOPIC, body=b"%d" % count)
                encoded.append(encode(message, message_id=f"{count:032x}", born_ms=1, born_host="sim"))
            process.spawn(self._publish(calls, queue, encoded), name="publish")

    async def _publish(self, calls: RpcConsumerCalls, queue: MessageQueue, encoded: list[bytes]) -> None:
        try:
            stored = await calls.publish(f"{queue.broker_name}:8081", queue, encoded, timeout_ms=1_000)
        except Error:
            return  # stored or not: what is in the queue must be read
        for offset in stored.offsets:
            self.add(Kind.STORED, "producer", str(queue), offset)

    async def _watch(self) -> None:
        events: dict[tuple[str, str], Any] = {}
        while True:
            await self.clock.sleep_ms(100)
            for node in self._of("broker"):
                if not node.process.running or node.app is None:
                    continue
                for _, queue, client_id, generation in node.app.broker.membership.locks.holders():
                    if events.get((node.name, str(queue))) != (client_id, generation):
                        events[node.name, str(queue)] = (client_id, generation)
                        self.add(Kind.HELD, client_id, str(queue), text=f"{generation.epoch}.{generation.counter}")

    # ------------------------------------------------------------------------------------------------ steps

    async def _step(self, what: str, lasts_ms: int) -> None:
        verb, _, kind = what.partition(" ")
        match verb:
            case "join":
                self.add(Kind.FAULT, "world", text="a member joins")
                await self._join()
            case "leave" | "roll" | "kill" | "pause":
                node = self._pick(kind or "member")
                if node is not None:
                    node.busy = True
                    self.add(Kind.FAULT, node.process.name, text=f"{verb} (for {lasts_ms} ms)")
                    await self._to_node(verb, node, lasts_ms)
            case "configure":
                self.add(Kind.FAULT, "world", text=what)
                await self._configure(kind)
            case "lease":
                await self._for(lasts_ms, "the lease is away", self._set_lease)
            case _:
                await self._to_net(what, lasts_ms)

    async def _configure(self, strategy: str) -> None:
        """The group gets this strategy, on one broker after the other; one that is away misses it."""
        for node in self._of("broker"):
            await self.clock.sleep_ms(self.rng.choice((0, 3, 50)))
            if node.process.running and not node.busy:
                node.process.spawn(node.app.broker.catalog.create_group(GROUP, strategy=strategy), name="configure")

    def _pick(self, kind: str) -> Node | None:
        living = [node for node in self._of(kind) if node.process.running and not node.busy]
        if kind == "member" and len(living) < 2:
            return None
        return self.rng.choice(living) if living else None

    async def _to_node(self, verb: str, node: Node, lasts_ms: int) -> None:
        match verb:
            case "pause":
                node.process.pause()
                await self.clock.sleep_ms(lasts_ms)
                self.add(Kind.FAULT, node.process.name, text="goes on")
                node.process.resume()
            case "kill":
                self._kill(node)
                await self.clock.sleep_ms(min(lasts_ms, 2_500))
            case _:
                await self._stop(node)
                self.add(Kind.FAULT, node.process.name, text="has ended")
                await self.clock.sleep_ms(min(lasts_ms, 1_000))
        if not node.process.alive:
            if node.kind == "member":
                del self.nodes[node.name]
                if verb == "roll":
                    await self._join()
            else:
                await self._start(node)
                self.add(Kind.FAULT, node.process.name, text="has started")
        node.busy = False

    async def _to_net(self, what: str, lasts_ms: int) -> None:
        fault = self.net.fault
        match what:
            case "slow":
                await self._for(lasts_ms, what, lambda on: setattr(fault, "spike", 0.2 if on else 0.0))
            case "lossy":
                await self._for(lasts_ms, what, lambda on: setattr(fault, "loss", 0.2 if on else 0.0))
            case "breaking":
                await self._for(lasts_ms, what, lambda on: setattr(fault, "breaks", 0.05 if on else 0.0))
            case "clock":
                node = self.rng.choice(list(self.nodes.values()))
                assert node.clock is not None
                node.clock.skew_ms += self.rng.choice((-60_000, -500, 500, 60_000))
                self.add(Kind.FAULT, node.name, text="its wall clock jumps")
            case "cut" | "cut one way":
                names = sorted(self.nodes)
                some = set(self.rng.sample(names, max(1, len(names) // self.rng.choice((2, 3, 9)))))
                others = [name for name in [*names, "producer"] if name not in some]
                pairs = [(one, other) for one in sorted(some) for other in others]
                if what == "cut":
                    pairs += [(other, one) for one, other in pairs]
                self.add(Kind.FAULT, "world", text=f"{what}: {', '.join(sorted(some))} from {', '.join(others)}")
                for name in some:
                    self.nodes[name].cut_off = True
                self.net.cut(pairs)
                await self.clock.sleep_ms(lasts_ms)
                self._join_links()
            case _:
                raise ValueError(f"no step {what!r}")

    async def _for(self, lasts_ms: int, what: str, change: Callable[[bool], None]) -> None:
        self.add(Kind.FAULT, "world", text=f"{what} (for {lasts_ms} ms)")
        change(True)
        await self.clock.sleep_ms(lasts_ms)
        self.add(Kind.FAULT, "world", text=f"no longer: {what}")
        change(False)

    def _set_lease(self, away: bool) -> None:
        self.lease_away = away

    def _join_links(self) -> None:
        self.add(Kind.FAULT, "world", text="all links are whole")
        for node in self.nodes.values():
            node.cut_off = False
        self.net.heal()

    async def _heal(self) -> None:
        self._join_links()
        fault = self.net.fault
        fault.loss, fault.breaks, fault.spike = 0.0, 0.0, 0.0
        self.lease_away = False
        self.add(Kind.FAULT, "world", text="everything is well again")
