"""The check of what any strategy gave: only the topic's queues, each at most once, only to members.

Called for every user-supplied strategy (`supplied.py`), and by servers that want it for any. What is no mistake but a
weakness (idle members, queues left out) is reported by `coverage`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from evenq.errors import BadRequest
from evenq.model import MessageQueue

__all__ = ["verified"]

SHOWN_MAX = 80  # characters of a foreign value in an error


def verified(
    shares: Mapping[str, Iterable[MessageQueue]],
    queues: Sequence[MessageQueue],
    ids: Sequence[str],
    *,
    strategy: str = "unnamed",
) -> dict[str, list[MessageQueue]]:
    """The shares as lists, in the order of `ids`; who is absent got nothing.

    Raises BadRequest that names the strategy, the member or queue and what to fix, for a member that is not in the
    group, a queue that is not the topic's, and a queue that was given twice.
    """
    if not isinstance(shares, Mapping):
        raise _wrong(strategy, f"gave a {type(shares).__name__}", "give a dict of client id to list of queues")
    members, owner_of = set(ids), dict.fromkeys(queues, "")
    for client_id, mine in shares.items():
        if client_id not in members:
            raise _wrong(
                strategy, f"gave queues to {_shown(client_id)}, no member", "give only to the ids it was given"
            )
        if isinstance(mine, str) or not isinstance(mine, Iterable):
            raise _wrong(strategy, f"gave {_shown(client_id)} a {type(mine).__name__}", "give a list of queues")
    result = {client_id: list(shares.get(client_id, ())) for client_id in ids}
    for client_id, owned in result.items():
        for queue in owned:
            owner = owner_of.get(queue) if isinstance(queue, MessageQueue) else None
            if owner is None:
                raise _wrong(
                    strategy,
                    f"gave {_shown(queue)} to {_shown(client_id)}, which is not among the {len(owner_of)} queues",
                    "give only the queues it was given",
                )
            if owner:
                twice = f"gave queue {queue} twice, to {_shown(owner)} and {_shown(client_id)}"
                raise _wrong(strategy, twice, "give each queue to one member, from the same arguments for all")
            owner_of[queue] = client_id
    return result


def _wrong(strategy: str, what: str, fix: str) -> BadRequest:
    return BadRequest(f"allocate strategy {strategy[:SHOWN_MAX]!r} {what}; fix the strategy: {fix}")


def _shown(value: object) -> str:
    text = repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= SHOWN_MAX else text[: SHOWN_MAX - 1] + "…"
