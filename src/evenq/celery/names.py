"""Names of topics and groups for queues of Celery, reversible.

Celery's names may have any character (`celery@host.pidbox`, `team.urgent`); topics and groups allow letters, digits,
`%`, `_` and `-`. Every other byte of the UTF-8 form, and `%` itself, is written as `%` and two hexadecimal digits, as
in a URL. Topic and group of a queue have one name: the prefix, then the escaped queue.
Always true: `queue_of(topic_of(queue)) == queue`; different queues have different topics.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import sha256
from urllib.parse import quote, unquote

from evenq.errors import IllegalTopic
from evenq.model.names import GROUP_LENGTH_MAX, topic_problem

BROADCAST = "%broadcast"
"""Ends the name of the topic for broadcasts. No escaped queue ends so: its `%` precede upper-case digits."""
_ESCAPED_DOT_AND_TILDE = {".": "%2E", "~": "%7E"}
_LEFT_BY_QUOTE = re.compile("[.~]")


def escape(text: str) -> str:
    """Returns the text in the alphabet of topics."""
    return _LEFT_BY_QUOTE.sub(lambda found: _ESCAPED_DOT_AND_TILDE[found[0]], quote(text, safe=""))


@dataclass(frozen=True, slots=True)
class QueueNames:
    """Names of one transport; `prefix` keeps its topics apart from others."""

    prefix: str

    def __post_init__(self) -> None:
        problem = topic_problem(self.prefix) if self.prefix else None
        if problem:
            raise IllegalTopic(
                f"the prefix of all names, from topic_prefix or the path of the broker's URL with '-', is not valid: "
                f"{problem}"
            )

    @property
    def broadcasts(self) -> str:
        """The topic of broadcasts and of queues that end with their process."""
        return self.prefix + BROADCAST

    def topic_of(self, queue: str) -> str:
        """Returns the topic of a queue, which is also its group. Raises IllegalTopic for a name that is too long."""
        name = self.prefix + escape(queue)
        if not queue or len(name) > GROUP_LENGTH_MAX:
            raise IllegalTopic(
                f"queue {queue!r:.200} needs a topic name of {len(name)} characters, the range is "
                f"{len(self.prefix) + 1} to {GROUP_LENGTH_MAX} with the prefix {self.prefix!r}; give the queue another "
                "name. Characters other than letters, digits, '_' and '-' count three for each byte"
            )
        return name

    def queue_of(self, topic: str) -> str | None:
        """Returns the queue of a topic; None: the topic belongs to no queue of this prefix."""
        if not topic.startswith(self.prefix) or topic.endswith(BROADCAST):
            return None
        return unquote(topic.removeprefix(self.prefix), errors="strict")


def broadcast_tag(exchange: str, routing_key: str | None) -> str:
    """Returns the tag by which brokers filter broadcasts: of one exchange, or of one routing key of it.

    It is a digest, because tags must not contain `|` and exchanges may. A reader compares the names themselves.
    """
    text = exchange if routing_key is None else f"{exchange}\0{routing_key}"
    return sha256(text.encode()).hexdigest()[:24]
