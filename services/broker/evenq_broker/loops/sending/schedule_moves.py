"""Hands schedules over from one broker to another, so that each time has one message (decision 152).

The broker that takes a schedule drives, and repeats everything after a failure. Each step is durable before the next:
the giver writes `moving_to` and never fires again; the taker writes the schedule with what was fired, and `came_from`;
the giver removes it, unless its `hop` is newer than reported; the taker clears `came_from`. Invariants:

- At most one broker has the schedule without `moving_to`. With `moving_to` it is given to that broker alone.
- The taker holds the answer of the giver and stores it within one call, and a second call for the schedule is refused
  meanwhile: an old answer is never stored after a newer one.
- A schedule with `came_from` is not deleted or given away: the giver, which still offers it, would bring it back.

Example: the answer is lost, and the taker dies. A repeated move gets the same answer. A move back undoes it, because
the taker answers that it does not have the schedule; then that counts from now.
"""

from __future__ import annotations

from dataclasses import replace

from evenq.errors import HaNotAvailable, NotFound, PreconditionFailed
from evenq.model import TopicConfig
from evenq.runtime.failpoints import passing
from evenq_broker.core.sending.schedules import KeptSchedule
from evenq_broker.core.state.schedule_records import Schedule
from evenq_broker.loops.cluster.link import ClusterLink
from evenq_broker.loops.sending.schedules import Schedules
from evenq_broker.loops.state.kernel import Kernel
from evenq_broker.loops.wire.scheduled_messages import check_given, give_schedule, given_schedule

GIVE = "/evenq.v1.Peers/GiveSchedule"


class ScheduleMoves:
    """This broker as the giver and as the taker of schedules."""

    def __init__(self, kernel: Kernel, *, cluster: ClusterLink, schedules: Schedules) -> None:
        self._runtime, self._catalog = kernel.runtime, kernel.catalog
        self._cluster, self._schedules = cluster, schedules
        self._own = kernel.runtime.settings.broker_name
        self._taking: set[tuple[int, str]] = set()

    # ------------------------------------------------------------------------------------------------ the giver

    async def give(self, topic: TopicConfig, name: str, to: str) -> Schedule:
        """Stops the firings of a schedule here for good, and returns it. Raises NotFound, PreconditionFailed."""
        await self.settle(topic, name)
        kept = await self._schedules.idle(topic.topic_id, name)
        if (topic.topic_id, name) in self._taking:
            raise HaNotAvailable(f"schedule {name[:80]!r} is being moved by another call; try again")
        if kept is None:
            raise NotFound(f"broker {self._own} has no schedule {name[:80]!r} of topic {topic.name}")
        schedule = kept.schedule
        if schedule.came_from or schedule.moving_to not in {"", to}:
            raise PreconditionFailed(
                f"schedule {name} cannot be given to broker {to}: {kept.trouble or 'it just came'}"
            )
        if not schedule.moving_to:
            schedule = replace(schedule, moving_to=to, hop=schedule.hop + 1)
        await self._schedules.write(schedule)
        passing("schedule.given")
        return schedule

    async def gone(self, topic: TopicConfig, name: str, to: str, *, uid: str, hop: int) -> None:
        """Removes a schedule that the broker `to` has stored; a repetition changes nothing."""
        kept = await self._schedules.idle(topic.topic_id, name)
        schedule = None if kept is None else kept.schedule
        if schedule is None or (schedule.moving_to, schedule.uid) != (to, uid) or schedule.hop > hop:
            await self._schedules.settled()
            return
        await self._schedules.remove(topic.topic_id, name)

    # ------------------------------------------------------------------------------------------------ the taker

    async def take(self, topic: TopicConfig, name: str, source: str, *, fires: bool) -> KeptSchedule:
        """Makes this broker keep the schedule that broker `source` has; `source` may be this one, or a giver that still
        offers what was stored here. `fires`: it fires at `source`, so the newest state is there. Raises NotFound,
        PreconditionFailed, HaNotAvailable, TooManyRequests, and the errors of a call to a broker.
        """
        key = topic.topic_id, name
        if key in self._taking:
            raise HaNotAvailable(f"schedule {name[:80]!r} is being moved by another call; try again")
        self._taking.add(key)
        try:
            kept = await self._schedules.idle(*key)
            if kept is None or kept.schedule.moving_to:
                asked = source
                if kept is not None and (source == self._own or not fires):
                    # An entry elsewhere that only offers it may be older: its broker was forgotten and is back.
                    asked = kept.schedule.moving_to
                await self._fetch(topic, name, asked)
        finally:
            self._taking.discard(key)
        await self.settle(topic, name, source)
        await self._schedules.settled()  # one that was here already may rest on a record that is not safe yet
        return self._schedules.known(topic, name)

    async def settle(self, topic: TopicConfig, name: str, source: str = "") -> None:
        """Makes sure that the broker from which the schedule came does not have it any more. `source`: one that may
        have it although nothing here says so, because it was forgotten and is back.
        """
        kept = await self._schedules.idle(topic.topic_id, name)
        giver = "" if kept is None else kept.schedule.came_from or source
        if kept is None or giver in {"", self._own}:
            return
        schedule = kept.schedule
        if self._belongs(giver):
            request = give_schedule(self._own, topic.name, name, uid=schedule.uid, hop=schedule.hop)
            check_given(await self._cluster.peers.ask(giver, GIVE, request, repeatable=True))
        if not schedule.came_from:
            return
        passing("schedule.confirmed")
        kept = await self._schedules.idle(topic.topic_id, name)
        if kept is not None and (kept.schedule.uid, kept.schedule.hop) == (schedule.uid, schedule.hop):
            await self._schedules.write(replace(kept.schedule, came_from=""))

    async def _fetch(self, topic: TopicConfig, name: str, source: str) -> None:
        own = await self._schedules.idle(topic.topic_id, name)
        if own is None:
            self._schedules.must_have_room(topic)
        try:
            if not self._belongs(source):
                raise NotFound(f"broker {source} does not belong to the cluster")
            request = give_schedule(self._own, topic.name, name)
            schedule = given_schedule(await self._cluster.peers.ask(source, GIVE, request, repeatable=True))
        except NotFound:
            own = await self._schedules.idle(topic.topic_id, name)
            if own is None or own.schedule.moving_to != source:
                raise
            # The other broker has not stored it, or is gone for good with it, and may have fired it until then.
            done_ms = max(own.schedule.done_ms, self._runtime.clock.now_ms())
            await self._schedules.write(replace(own.schedule, moving_to="", done_ms=done_ms))
            return
        passing("schedule.fetched")
        now = await self._schedules.idle(topic.topic_id, name)
        if self._catalog.topics.by_id(topic.topic_id) is None:
            raise NotFound(f"topic {topic.name} was deleted meanwhile")
        if now is not None and not now.schedule.moving_to:
            raise PreconditionFailed(f"topic {topic.name} got another schedule {name} meanwhile; delete one of them")
        taken = replace(schedule, topic_id=topic.topic_id, moving_to="", came_from=source)
        await self._schedules.write(taken)
        passing("schedule.taken")

    def _belongs(self, broker: str) -> bool:
        """False: it was forgotten, or left in order after it was drained."""
        return self._catalog.routes.broker(broker) is not None or broker in self._cluster.known.brokers
