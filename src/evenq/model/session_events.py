"""What a broker tells a member of a group over its open session: declared once for the broker that says it and the
client that hears it.

Where the two sides know different things of the same event, the type of it is a parameter: a broker has the whole
settings of a group and a share as it came over the wire, a client has what it received of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from evenq.model.generation import NO_GENERATION, Generation
from evenq.model.queue import MessageQueue

__all__ = [
    "AssignmentChanged",
    "BrokerLeaving",
    "MembersChanged",
    "OffsetsReset",
    "QueueWanted",
    "SettingsChanged",
]

Member_co = TypeVar("Member_co", covariant=True)
Settings_co = TypeVar("Settings_co", covariant=True)
Share_co = TypeVar("Share_co", covariant=True)


@dataclass(frozen=True, slots=True)
class MembersChanged(Generic[Member_co]):
    """All members of the group, as they are when the event is taken."""

    members: Sequence[Member_co]


@dataclass(frozen=True, slots=True)
class SettingsChanged(Generic[Settings_co]):
    """The group was configured anew."""

    settings: Settings_co


@dataclass(frozen=True, slots=True)
class AssignmentChanged(Generic[Share_co]):
    """A newer decision exists."""

    topic: str
    generation: Generation = NO_GENERATION
    share: Share_co | None = None
    """The member's part of it; None: it must ask."""


@dataclass(frozen=True, slots=True)
class QueueWanted:
    """Another member waits for the lock of a queue that this member holds."""

    queue: MessageQueue


@dataclass(frozen=True, slots=True)
class OffsetsReset:
    """An operator moved the group on these queues of the member: forget them and begin again at the committed
    offsets.
    """

    queues: tuple[MessageQueue, ...]


@dataclass(frozen=True, slots=True)
class BrokerLeaving:
    """The broker is closing: finish what is held of its queues, commit and unlock; it waits for `drain_ms` at most."""

    drain_ms: int
