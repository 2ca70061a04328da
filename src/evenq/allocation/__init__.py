"""Who of a consumer group reads which message queues: the allocate strategies, as pure functions.

Called by the SDK (each member computes for itself), by brokers and by the rebalancer (one decision for all members).
Always true: the same arguments give the same answer, in every process, so members that sort alike never disagree
(RB-11). Six give the results of RocketMQ, worked examples included (AL-1 to AL-35); what its documents name as a
weakness is counted by `coverage`, which looks at results and never changes them. STICKY and rooms by zone use what only
a server knows (`Context`).

    averagely = by_name("AVG")
    mine = averagely.allocate("group", "client-2", queues, ids)
"""

from evenq.allocation.averagely import Averagely
from evenq.allocation.by_circle import ByCircle
from evenq.allocation.config import Config
from evenq.allocation.consistent_hash import ConsistentHash, md5_hash
from evenq.allocation.context import Context
from evenq.allocation.cover import Coverage, coverage
from evenq.allocation.machine_room import MachineRoom, room_of_broker
from evenq.allocation.named import by_name, known_names, requested_strategy, stand_in
from evenq.allocation.nearby import Nearby, PrefixRooms, RoomResolver
from evenq.allocation.sticky import Sticky
from evenq.allocation.strategy import ContextDivider, Strategy, absence, divide
from evenq.allocation.supplied import NO_STRATEGY
from evenq.allocation.verified import verified

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
