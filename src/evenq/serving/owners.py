"""Whose a client id is, while its client lives: another user cannot pass for it.

Servers send a client's stream what was asked of that client, half messages of transactions among it, and a farewell
under its id ends its deliveries. An id belongs to the user who first came with it, until it was silent for a while or
said farewell. Bounded: the longest silent one makes room. Pure; the guard asks and brings the time.
"""

from __future__ import annotations

from collections import OrderedDict

__all__ = ["ClientOwners"]


class ClientOwners:
    """Owners by client id."""

    def __init__(self, *, silence_ms: int = 120_000, owners_max: int = 100_000) -> None:
        """`silence_ms`: how long after its last call an id is anybody's; SDKs send a heartbeat every 10 s."""
        self._silence_ms = silence_ms
        self._owners_max = owners_max
        self._owners: OrderedDict[str, tuple[str, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._owners)

    def claim(self, client_id: str, user: str, now_ms: int) -> bool:
        """This user comes with the id: is it theirs? Monotonic ms."""
        owner = self._owners.get(client_id)
        if owner is not None and owner[0] != user and now_ms - owner[1] < self._silence_ms:
            return False
        self._owners[client_id] = (user, now_ms)
        self._owners.move_to_end(client_id)
        if len(self._owners) > self._owners_max:
            self._owners.popitem(last=False)
        return True

    def leave(self, client_id: str) -> None:
        """The owner said farewell."""
        self._owners.pop(client_id, None)
