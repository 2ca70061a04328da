"""Who is in which group at this broker, what each holds, and which queues each was given last: three tables."""

from __future__ import annotations

from evenq_broker.core.assignment.local import LastAnswers
from evenq_broker.core.groups.locks import LockTable
from evenq_broker.core.groups.members import MemberTable

__all__ = ["GroupTables"]


class GroupTables:
    """The members of all groups at one broker."""

    def __init__(self) -> None:
        self.members = MemberTable()
        self.locks = LockTable()
        """Who holds which queue of this broker."""
        self.answers = LastAnswers()
        """The queues that each member was given last."""
