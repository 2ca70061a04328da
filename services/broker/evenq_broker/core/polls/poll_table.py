"""Long polls that wait for messages: the callers, what they wait for, and which of them an event wakes.

Called by `loops.polls.waiting`, which owns the futures (here an opaque `token`) and the clock. A poll for messages
belongs to a group and waits for any queue of one topic, or for some of its queues. One event wakes one poll of each
group; a poll that takes a full batch wakes the next. A watch (no group) is woken by every growth of its queues. Polls
for any queue are also counted by group and topic, for the other brokers (`loops.polls.cluster_polls`). Always true: a
poll is in the table or done.
"""

from __future__ import annotations

import heapq
from collections import Counter, OrderedDict
from collections.abc import Callable, Container, Iterable

from evenq_broker.core.shares import UsersNow, has_share, no_users, within_share

ANY = -1  # queue id: all queues of the topic

_NEVER = 1 << 63


class Poll:
    __slots__ = (
        "ahead",
        "client_id",
        "deadline_ms",
        "group_id",
        "known",
        "parked",
        "push",
        "source",
        "token",
        "topic_id",
        "user",
        "woken",
    )

    def __init__(
        self,
        group_id: int,
        topic_id: int,
        known: dict[tuple[int, int], int] | None,
        deadline_ms: int,
        client_id: str,
        user: str,
    ) -> None:
        self.group_id = group_id  # 0: a watch
        self.topic_id = topic_id
        self.known = known
        """Queues waited for with the maximum the caller knows; None: all queues of the topic."""
        self.deadline_ms = deadline_ms
        self.client_id = client_id
        self.user = user
        """User whose share of the table it takes; empty: no user."""
        self.parked = True
        self.woken = False
        """True if an event ended it, False for its deadline or the end of its client."""
        self.token: object = None  # the loop's future
        self.push = False  # a push consumer's: it polls every broker by itself
        self.ahead = False
        """Takes messages that are not committed yet, and answers when they are."""
        self.source = ""
        """Name of the broker whose message woke it; empty: this one."""


class PollTable:
    """All parked polls of one broker."""

    __slots__ = (
        "_by_client",
        "_by_user",
        "_deadlines",
        "_parked",
        "_receivers",
        "_sequence",
        "_stale",
        "_users",
        "_watches",
        "on_wide",
        "polls_max",
        "wide",
    )

    def __init__(self, *, polls_max: int = 20_000, users: UsersNow = no_users) -> None:
        """`users`: see `core.shares`."""
        self.polls_max = polls_max
        self._users = users
        self._by_user: dict[str, int] = {}
        # topic -> group -> polls, oldest first; any of them may leave at any time, by the thousand
        self._receivers: dict[int, dict[int, OrderedDict[Poll, None]]] = {}
        self._watches: dict[tuple[int, int], list[Poll]] = {}  # (topic, queue) -> polls
        self._by_client: dict[str, set[Poll]] = {}
        self._deadlines: list[tuple[int, int, Poll]] = []
        self._sequence = 0
        self._parked = 0
        self._stale = 0
        self.wide: dict[tuple[int, int, bool], int] = {}
        """Group, topic, whether of push consumers -> parked polls that any queue may answer."""
        self.on_wide: Callable[[tuple[int, int, bool]], None] | None = None
        """Called when a count of `wide` leaves 0 or comes back to it."""

    def __len__(self) -> int:
        return self._parked

    def park(
        self,
        group_id: int,
        topic_id: int,
        *,
        queue_id: int = ANY,
        queues: Iterable[int] | None = None,
        deadline_ms: int,
        client_id: str = "",
        user: str = "",
        push: bool = False,
        ahead: bool = False,
    ) -> Poll | None:
        """Parks a poll of a group for a topic, one queue, or `queues`. None: the table or the user's share is full."""
        known = None if queue_id == ANY else {(topic_id, queue_id): -1}
        if queues is not None:
            known = {(topic_id, one): -1 for one in queues}
        poll = self._add(Poll(group_id, topic_id, known, deadline_ms, client_id, user))
        if poll is not None:
            poll.push, poll.ahead = push, ahead
            self._receivers.setdefault(topic_id, {}).setdefault(group_id, OrderedDict())[poll] = None
            if known is None:
                self._count((group_id, topic_id, push), 1)
        return poll

    def watch(
        self, queues: Iterable[tuple[int, int, int]], *, deadline_ms: int, client_id: str = "", user: str = ""
    ) -> Poll | None:
        """Parks a poll until a queue (topic id, queue id, known maximum) grows past its maximum. None: see `park`."""
        known = {(topic_id, queue_id): maximum for topic_id, queue_id, maximum in queues}
        poll = self._add(Poll(0, 0, known, deadline_ms, client_id, user))
        if poll is not None:
            for queue in known:
                self._watches.setdefault(queue, []).append(poll)
        return poll

    def groups(self, topic_id: int) -> list[int]:
        return list(self._receivers.get(topic_id, ()))

    def gathering(self, group_id: int, topic_id: int, queue_id: int) -> Poll | None:
        """Returns the poll to wake for messages that are not committed yet: one that takes such messages."""
        for poll in self._receivers.get(topic_id, {}).get(group_id, ()):
            if poll.ahead and (poll.known is None or (topic_id, queue_id) in poll.known):
                self._remove(poll)
                poll.woken = True
                return poll
        return None

    def arrived(self, topic_id: int, queue_id: int, max_offset: int, *, but: Container[int] = ()) -> list[Poll]:
        """Returns the polls to wake after a queue grew: one of each group, and every watch that knew less. Groups in
        `but` have taken all of it already.
        """
        woken = []
        for group_id in self.groups(topic_id):
            poll = None if group_id in but else self._next(group_id, topic_id, queue_id)
            if poll is not None:
                woken.append(poll)
        for poll in list(self._watches.get((topic_id, queue_id), ())):
            if poll.known is not None and poll.known[topic_id, queue_id] < max_offset:
                self._remove(poll)
                woken.append(poll)
        for poll in woken:
            poll.woken = True
        return woken

    def look_again(self, topic_id: int, queue_id: int) -> list[Poll]:
        """Returns the watchers to wake of a queue whose owner changed: they check whether they may still read it."""
        woken = list(self._watches.get((topic_id, queue_id), ()))
        for poll in woken:
            self._remove(poll)
            poll.woken = True
        return woken

    def ready(self, group_id: int, topic_id: int, queue_id: int) -> Poll | None:
        """Returns the poll to wake for a message that became deliverable to one group."""
        poll = self._next(group_id, topic_id, queue_id)
        if poll is not None:
            poll.woken = True
        return poll

    def ready_elsewhere(self, group_id: int, topic_id: int, *, push: bool, source: str) -> Poll | None:
        """Returns the poll to wake for messages of another broker: one that any queue may answer."""
        for poll in self._receivers.get(topic_id, {}).get(group_id, ()):
            if poll.known is None and poll.push == push:
                self._remove(poll)
                poll.woken, poll.source = True, source
                return poll
        return None

    def refresh(self, client_id: str, topic_id: int) -> list[Poll]:
        """Returns the client's polls for this topic, which look again because what it waits for has changed."""
        polls = [one for one in self._by_client.get(client_id, ()) if one.topic_id == topic_id and one.group_id]
        for poll in polls:
            self._remove(poll)
            poll.woken = True
        return polls

    def tick(self, now_ms: int) -> list[Poll]:
        """Returns the polls whose time has ended."""
        over = []
        while self._deadlines and self._deadlines[0][0] <= now_ms:
            poll = heapq.heappop(self._deadlines)[2]
            if poll.parked:
                self._remove(poll)
                over.append(poll)
            else:
                self._stale -= 1
        return over

    def next_deadline(self) -> int | None:
        """Returns when `tick` has something to do; may be early, never late."""
        return self._deadlines[0][0] if self._deadlines else None

    def cancel(self, poll: Poll) -> None:
        if poll.parked:
            self._remove(poll)

    def pause(self, *, deadline_ms: int, client_id: str) -> Poll | None:
        """Parks a poll that no message ends, only its owner, its time or the end of its client. None: see `park`."""
        return self.watch((), deadline_ms=deadline_ms, client_id=client_id)

    def hold(self, topic_id: int, queue_id: int, *, deadline_ms: int, client_id: str, user: str = "") -> Poll | None:
        """Parks a poll for a queue that another member holds: no message wakes it. None: as for `park`."""
        poll = self.watch([(topic_id, queue_id, _NEVER)], deadline_ms=deadline_ms, client_id=client_id, user=user)
        if poll is not None:
            # The mark by which `held` finds it: no other watch has it.
            poll.push = True
        return poll

    def held(self, topic_id: int, queue_id: int) -> list[Poll]:
        """Returns polls that `hold` parked for the queue."""
        return [poll for poll in self._watches.get((topic_id, queue_id), ()) if poll.push]

    def of_queues(self, group_id: int, topic_id: int) -> list[Poll]:
        """Returns polls of the group's push consumers that name their queues."""
        polls = self._receivers.get(topic_id, {}).get(group_id, ())
        return [poll for poll in polls if poll.push and poll.known is not None]

    def end(self, polls: Iterable[Poll]) -> list[Poll]:
        """Removes these as if their time had ended; returns those that were parked."""
        return self._end(list(polls))

    def waits(self, client_id: str) -> bool:
        """Returns True if a poll of the client is parked: it lives."""
        return client_id in self._by_client

    def end_client(self, client_id: str) -> list[Poll]:
        """Removes and returns the polls of a client that ends, which get an empty answer immediately."""
        return self._end(list(self._by_client.get(client_id, ())))

    def end_topic(self, topic_id: int) -> list[Poll]:
        """Removes and returns the polls of a topic that is gone."""
        receivers = [poll for polls in self._receivers.get(topic_id, {}).values() for poll in polls]
        watches = [poll for queue, polls in self._watches.items() if queue[0] == topic_id for poll in polls]
        return self._end([*receivers, *watches])

    def end_all(self) -> list[Poll]:
        """Removes and returns every poll: the broker ends."""
        return self._end([poll for _, _, poll in sorted(self._deadlines, key=lambda entry: entry[:2])])

    def _end(self, polls: list[Poll]) -> list[Poll]:
        ended = [poll for poll in polls if poll.parked]
        for poll in ended:
            self._remove(poll)
        return ended

    def _add(self, poll: Poll) -> Poll | None:
        if not self._has_room(poll.user):
            return None
        if poll.user:
            self._by_user[poll.user] = self._by_user.get(poll.user, 0) + 1
        self._sequence += 1
        # The sequence keeps the heap from comparing polls, and ends those of one ms in the order in which they came.
        heapq.heappush(self._deadlines, (poll.deadline_ms, self._sequence, poll))
        if poll.client_id:
            self._by_client.setdefault(poll.client_id, set()).add(poll)
        self._parked += 1
        return poll

    def _has_room(self, user: str) -> bool:
        if self._parked >= self.polls_max:
            return False
        own = self._by_user.get(user, 0) if user else 0
        return within_share(self.polls_max, total=self._parked, own=own) or not has_share(self._users(), user)

    def _next(self, group_id: int, topic_id: int, queue_id: int) -> Poll | None:
        for poll in self._receivers.get(topic_id, {}).get(group_id, ()):
            if poll.known is None or (topic_id, queue_id) in poll.known:
                self._remove(poll)
                return poll
        return None

    def _remove(self, poll: Poll) -> None:
        poll.parked = False
        self._parked -= 1
        self._stale += 1
        if poll.user:
            self._by_user[poll.user] -= 1
            if not self._by_user[poll.user]:
                del self._by_user[poll.user]
        if poll.client_id:
            mine = self._by_client[poll.client_id]
            mine.discard(poll)
            if not mine:
                del self._by_client[poll.client_id]
        if poll.group_id:
            if poll.known is None:
                self._count((poll.group_id, poll.topic_id, poll.push), -1)
            groups = self._receivers[poll.topic_id]
            polls = groups[poll.group_id]
            del polls[poll]
            if not polls:
                del groups[poll.group_id]
                if not groups:
                    del self._receivers[poll.topic_id]
        else:
            for queue in poll.known or ():
                self._watches[queue].remove(poll)
                if not self._watches[queue]:
                    del self._watches[queue]
        # A heap removes only its first entry. Entries of polls that were woken early go together, at O(1) each.
        if self._stale > 2 * self._parked + 1024:
            self._deadlines = [entry for entry in self._deadlines if entry[2].parked]
            heapq.heapify(self._deadlines)
            self._stale = 0

    def _count(self, key: tuple[int, int, bool], step: int) -> None:
        count = self.wide.get(key, 0) + step
        if count:
            self.wide[key] = count
        else:
            del self.wide[key]
        if self.on_wide is not None and count == max(step, 0):
            self.on_wide(key)

    def check(self) -> None:
        receivers = [poll for groups in self._receivers.values() for polls in groups.values() for poll in polls]
        watches = {poll for polls in self._watches.values() for poll in polls}
        assert self._parked == len(receivers) + len(watches)
        assert all(poll.parked for poll in [*receivers, *watches])
        assert sum(entry[2].parked for entry in self._deadlines) == self._parked
        wide: dict[tuple[int, int, bool], int] = {}
        for poll in receivers:
            if poll.known is None:
                key = (poll.group_id, poll.topic_id, poll.push)
                wide[key] = wide.get(key, 0) + 1
        assert wide == self.wide
        assert self._by_user == Counter(poll.user for poll in [*receivers, *watches] if poll.user)
        assert sum(map(len, self._by_client.values())) <= self._parked
