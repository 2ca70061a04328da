"""The allocate strategies of consumer groups, as pure functions from queues and members to shares.

In the SDK each member computes its own share; brokers and the rebalancer make one decision for all members. The same
arguments give the same result in every process, so members with equal sorted lists always agree (RB-11). Six strategies
give the results of RocketMQ, worked examples included (AL-1 to AL-35). `coverage` reports the weaknesses that its
documents name, without changing results. STICKY and rooms by zone use facts that only servers have (`Context`).

    averagely = by_name("AVG")
    mine = averagely.allocate("group", "client-2", queues, ids)
"""

from evenq.allocation.averagely import Averagely
from evenq.allocation.by_circle import ByCircle
from evenq.allocation.config import Config
from evenq.allocation.consistent_hash import ConsistentHash, md5_hash
from evenq.allocation.context import Context
from evenq.allocation.machine_room import MachineRoom, room_of_broker
from evenq.allocation.named import by_name, known_names, requested_strategy, stand_in
from evenq.allocation.nearby import Nearby, PrefixRooms, RoomResolver
from evenq.allocation.sticky import Sticky
from evenq.allocation.strategy import ContextDivider, Strategy, absence, divide
from evenq.allocation.supplied import NO_STRATEGY
from evenq.allocation.verified import Coverage, coverage, verified

__all__ = [
    "NO_STRATEGY",
    "Averagely",
    "ByCircle",
    "Config",
    "ConsistentHash",
    "Context",
    "ContextDivider",
    "Coverage",
    "MachineRoom",
    "Nearby",
    "PrefixRooms",
    "RoomResolver",
    "Sticky",
    "Strategy",
    "absence",
    "by_name",
    "coverage",
    "divide",
    "known_names",
    "md5_hash",
    "requested_strategy",
    "room_of_broker",
    "stand_in",
    "verified",
]
