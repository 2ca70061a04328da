"""Events that a broker sends to a member of a group over its session, declared once for both sides.

Where the two sides have different data about an event, its type is a parameter. A broker has all settings of a group
and a share in its wire form; a client has the part that it received.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from evenq.model.generation import NO_GENERATION, Generation
from evenq.model.queue import MessageQueue

Member_co = TypeVar("Member_co", covariant=True)
Settings_co = TypeVar("Settings_co", covariant=True)
Share_co = TypeVar("Share_co", covariant=True)


@dataclass(frozen=True, slots=True)
class MembersChanged(Generic[Member_co]):
    """All members of the group, as they are when the event is taken."""

    members: Sequence[Member_co]


@dataclass(frozen=True, slots=True)
class SettingsChanged(Generic[Settings_co]):
    """The configuration of the group was changed."""

    settings: Settings_co


@dataclass(frozen=True, slots=True)
class AssignmentChanged(Generic[Share_co]):
    """A newer decision exists."""

    topic: str
    generation: Generation = NO_GENERATION
    share: Share_co | None = None
    """The member's part of it; None: the member must query it."""


@dataclass(frozen=True, slots=True)
class QueueWanted:
    """Another member waits for the lock of a queue that this member holds."""

    queue: MessageQueue


@dataclass(frozen=True, slots=True)
class OffsetsReset:
    """An operator reset the group on these queues of the member, which must start again at the committed offsets."""

    queues: tuple[MessageQueue, ...]


@dataclass(frozen=True, slots=True)
class BrokerLeaving:
    """The broker is closing: the member must finish, commit and unlock its queues within `drain_ms`."""

    drain_ms: int
