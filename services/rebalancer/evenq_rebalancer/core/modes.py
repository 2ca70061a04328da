"""PULL or POP for a (group, topic): the request mode that an operator sets, as in RocketMQ 5 (XO-4).

Without a setting the mode is PULL where a strategy divides the queues, and POP where every member gets every broker.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from evenq.errors import BadRequest, TooManyRequests

POP_SHARE_MAX = 10_000


class RequestMode(StrEnum):
    """PULL: the member reads its queues with offsets. POP: it receives and acknowledges."""

    PULL = "PULL"
    POP = "POP"


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestModeSetting:
    """Request mode of one (group, topic)."""

    mode: RequestMode
    pop_share_queue_num: int = 0
    """POP only: a member also pops the shares of this number of next members; 0: every member pops every queue."""

    def __post_init__(self) -> None:
        if not 0 <= self.pop_share_queue_num <= POP_SHARE_MAX:
            raise BadRequest(f"pop_share_queue_num is {self.pop_share_queue_num}, the range is 0 to {POP_SHARE_MAX}")
        if self.mode is RequestMode.PULL and self.pop_share_queue_num:
            raise BadRequest(
                f"pop_share_queue_num is {self.pop_share_queue_num} with mode PULL; set mode POP, or leave it 0"
            )


class ModeTable:
    """All settings, at most `entries_max`."""

    def __init__(self, *, entries_max: int) -> None:
        self._entries_max = entries_max
        self._settings: dict[tuple[str, str], RequestModeSetting] = {}

    def get(self, group: str, topic: str) -> RequestModeSetting | None:
        return self._settings.get((group, topic))

    def put(self, group: str, topic: str, setting: RequestModeSetting) -> bool:
        """Sets or replaces; True if that changed anything. Raises TooManyRequests when the table is full."""
        key = (group, topic)
        if key not in self._settings and len(self._settings) >= self._entries_max:
            raise TooManyRequests(f"{self._entries_max} request modes are set already; raise request_modes_max")
        changed = self._settings.get(key) != setting
        self._settings[key] = setting
        return changed
