"""The three tables of groups at this broker: members, locks and last assignments."""

from __future__ import annotations

from evenq_broker.core.assignment.local import LastAnswers
from evenq_broker.core.groups.locks import LockTable
from evenq_broker.core.groups.members import MemberTable


class GroupTables:
    def __init__(self) -> None:
        self.members = MemberTable()
        self.locks = LockTable()  # holders of this broker's queues
        self.answers = LastAnswers()  # the last assignment of each member
