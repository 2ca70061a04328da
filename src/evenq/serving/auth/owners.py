"""Owners of client ids: while its client lives, an id belongs to one user, and no other user can act under it.

Servers send a client's stream what was asked of that client, half messages of transactions among it; a farewell under
its id ends its deliveries; a member's id holds queues. An id belongs to the user who first came with it, until it was
silent for a while or said farewell. Bounded for each user and in total, and a bound refuses new ids: an id that is
alive never makes room, so nobody can take an id over by coming with very many. Pure: the guard brings the time.
"""

from __future__ import annotations

from collections import OrderedDict

from evenq.errors import Forbidden, TooManyRequests

__all__ = ["ClientOwners"]


class ClientOwners:
    """Owners by client id, the one silent for longest first."""

    def __init__(self, *, silence_ms: int = 120_000, user_max: int = 50_000, owners_max: int = 100_000) -> None:
        """`silence_ms`: how long after its last call an id is anybody's; SDKs send a heartbeat every 10 s."""
        self._silence_ms = silence_ms
        self._user_max = user_max
        self._owners_max = owners_max
        self._owners: OrderedDict[str, tuple[str, int]] = OrderedDict()
        self._counts: dict[str, int] = {}
        """User -> how many ids."""

    def __len__(self) -> int:
        return len(self._owners)

    def claim(self, client_id: str, user: str, now_ms: int) -> None:
        """This user comes with the id. Raises Forbidden if it is another user's, TooManyRequests if the user has too
        many already. Monotonic ms.
        """
        owner = self._owners.get(client_id)
        if owner is None or owner[0] != user:
            if owner is not None and now_ms - owner[1] < self._silence_ms:
                raise Forbidden(f"client id {client_id!r:.300} is another user's; give each client its own")
            self.leave(client_id)
            self._must_have_room(user, now_ms)
            self._counts[user] = self._counts.get(user, 0) + 1
        self._owners[client_id] = (user, now_ms)
        self._owners.move_to_end(client_id)

    def leave(self, client_id: str) -> None:
        """The owner said farewell, or is silent."""
        owner = self._owners.pop(client_id, None)
        if owner is not None:
            self._counts[owner[0]] -= 1
            if not self._counts[owner[0]]:
                del self._counts[owner[0]]

    def _must_have_room(self, user: str, now_ms: int) -> None:
        # Two for one that comes: the silent are gone before the table is full of them.
        for _ in range(2):
            oldest = next(iter(self._owners), None)
            if oldest is None or now_ms - self._owners[oldest][1] < self._silence_ms:
                break
            self.leave(oldest)
        count = self._counts.get(user, 0)
        if count >= self._user_max:
            raise TooManyRequests(
                f"user {user} has {count} clients at this server, the limit is auth.user_clients_max: close clients "
                f"that are not used, or wait {self._silence_ms} ms after their last call"
            )
        if len(self._owners) >= self._owners_max:
            raise TooManyRequests(f"this server knows {len(self._owners)} clients, the limit; try again after a pause")
