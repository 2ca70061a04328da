"""Steps of lifecycle worlds in which a broker is away while a topic or group is deleted, and how they must end."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from evenq_proofs.sim.history import Kind

from evenq.wire.stubs.evenq.v1 import admin_pb2
from evenq_sim.world import GROUP, TOPIC, Node

if TYPE_CHECKING:
    from evenq_sim.lifecycles import LifecycleWorld

NOTICED_MS = 500
"""The brokers that are there miss the one that ended by then."""
LATER = "they delete it when they are back"


async def while_away(world: LifecycleWorld, what: str, lasts_ms: int) -> None:
    """A broker is away while the topic or group is deleted, perhaps made again, and while all others restart."""
    node = world._pick("broker")
    if node is None or len(world._of("broker")) < 2:
        return
    living = [one for one in world._of("member") if one.process.running and not one.busy]
    members = living if "group" in what else []
    for one in (node, *members):
        one.busy = True
    await asyncio.gather(*(world._to_node("leave", one, 0) for one in members))
    await world._stop(node)
    world.add(Kind.FAULT, node.name, text="is away")
    await world.clock.sleep_ms(NOTICED_MS)
    others = [one for one in world._of("broker") if one is not node and one.process.running and not one.busy]
    for one in others:
        one.busy = True
    await (_delete_group(world) if "group" in what else _delete_topic(world, others))
    if "recreate" in what:
        await world.make_topic()
    await asyncio.gather(*(world._to_node("roll", one, lasts_ms) for one in others))
    await world._start(node)
    node.busy = False
    world.add(Kind.FAULT, node.name, text="is back")
    await world.clock.sleep_ms(lasts_ms)
    await (world.make_group() if "group" in what else world.make_topic())
    for _ in members:
        await world._join()


async def _delete_topic(world: LifecycleWorld, brokers: list[Node]) -> None:
    world.deleted |= {world.topic_uid(one.process) for one in brokers} - {""}
    request: Any = admin_pb2.DeleteTopicRequest(topic=TOPIC)
    await world.ask("DeleteTopic", request, admin_pb2.DeleteTopicResponse, done=(LATER,))


async def _delete_group(world: LifecycleWorld) -> None:
    request: Any = admin_pb2.DeleteGroupRequest(group=GROUP)
    if await world.ask("DeleteGroup", request, admin_pb2.DeleteGroupResponse, done=(LATER,)) is not None:
        world.group_deleted()


def undead(world: LifecycleWorld, brokers: list[Node]) -> list[str]:
    """Topics that were deleted and are there, or that are not the same at all brokers."""
    uids = {node.name: world.topic_uid(node.process) for node in brokers} if world.deleted else {}
    problems = [f"{name} has the topic {uid}, which was deleted" for name, uid in uids.items() if uid in world.deleted]
    if len(set(uids.values())) > 1:
        problems.append(f"the topic is not the same at all brokers: {uids}")
    return problems
