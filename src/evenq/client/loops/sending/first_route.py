"""The first route of a topic, which a producer needs before it can send.

A producer with several access points may start while none of them answers: they are copies of a broker, and another one
will lead within seconds. So no attempts are counted then, as for a producer that knows its group (decisions 66 and 74).
With one access point there are few attempts: a wrong address is reported early.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from evenq.client.core.routes.route import Route
from evenq.client.loops.routes.leader_watch import LOOK_MAX_MS
from evenq.client.loops.routes.route_book import RouteBook
from evenq.client.options import ProducerOptions
from evenq.errors import ConnectionFailed, Error, RequestTimeout, TlsFailed
from evenq.runtime.backoff import Backoff
from evenq.runtime.clock import Clock


class FirstRoute:
    """The search for first routes of one producer, in its loop."""

    def __init__(
        self, routes: RouteBook, clock: Clock, rng: random.Random, options: ProducerOptions, *, several: bool
    ) -> None:
        self._routes, self._clock, self._rng, self._options = routes, clock, rng, options
        self._several = several
        self._silence: dict[str, Error] = {}
        """The last failure to reach an access point, by topic."""

    async def get(self, topic: str, *, is_wanted: Callable[[], bool]) -> Route:
        """Returns the route, after at most `max_attempts`; attempts without an access point do not count.

        They are repeated as long as `is_wanted` is true. Raises TopicNotFound, ConnectionFailed, RequestTimeout ...
        """
        backoff = Backoff(self._rng, first_ms=self._options.retry_first_ms, max_ms=self._options.retry_max_ms)
        attempts = 0
        try:
            while True:
                try:
                    return await self._routes.get(topic)
                except Error as error:
                    waits = self._several and _is_silence(error)
                    attempts += not waits
                    goes_on = is_wanted() if waits else error.retryable and attempts < self._options.max_attempts
                    if not goes_on:
                        raise
                    self._silence[topic] = error
                pause_ms = backoff.next_ms()
                await self._clock.sleep_ms(min(pause_ms, LOOK_MAX_MS) if waits else pause_ms)
        finally:
            self._silence.pop(topic, None)

    def late(self, topic: str) -> RequestTimeout:
        """Returns the error for a message whose route did not arrive in time."""
        why = self._silence.get(topic)
        return RequestTimeout(
            f"no route for topic {topic} within {self._options.send_timeout_ms} ms (send_timeout_ms); the message was "
            f"not sent{'' if why is None else f': {why}'}"
        )


def _is_silence(error: Error) -> bool:
    # A server with which TLS fails is reachable: waiting does not help.
    return isinstance(error, (ConnectionFailed, RequestTimeout)) and not isinstance(error, TlsFailed)
