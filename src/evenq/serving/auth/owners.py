"""Owners of client ids: while its client is alive, an id belongs to one user, and no other user can act under it.

Under a client id servers send commands to the client's stream, half messages among them, end its deliveries when it
terminates, and lock queues. An id belongs to the first user who used it, until it is silent for a while or terminates.
The number is bounded for each user and in total. A bound refuses new ids and never evicts live ones, so nobody can take
over an id by using very many. Pure: the guard passes the time.
"""

from __future__ import annotations

from collections import OrderedDict

from evenq.errors import Forbidden, TooManyRequests


class ClientOwners:
    """Owner of each client id, the longest silent one first."""

    def __init__(self, *, silence_ms: int = 120_000, user_max: int = 50_000, owners_max: int = 100_000) -> None:
        """`silence_ms`: time after its last call when an id is free; SDKs send a heartbeat every 10 s."""
        self._silence_ms = silence_ms
        self._user_max = user_max
        self._owners_max = owners_max
        self._owners: OrderedDict[str, tuple[str, int]] = OrderedDict()
        self._counts: dict[str, int] = {}  # number of ids by user

    def __len__(self) -> int:
        return len(self._owners)

    def claim(self, client_id: str, user: str, now_ms: int) -> None:
        """Records that the user acts under the id, at a monotonic time. Raises Forbidden if it is another user's,
        TooManyRequests if the user has too many.
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
        """Releases an id whose client terminated, or is silent."""
        owner = self._owners.pop(client_id, None)
        if owner is not None:
            self._counts[owner[0]] -= 1
            if not self._counts[owner[0]]:
                del self._counts[owner[0]]

    def _must_have_room(self, user: str, now_ms: int) -> None:
        # Two for each new one, so that silent ids are removed before they fill the table.
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
            raise TooManyRequests(f"this server has {len(self._owners)} clients, the limit; try again after a pause")
