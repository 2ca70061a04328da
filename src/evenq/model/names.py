"""Rules for names of topics, groups, brokers and clients. Names never become paths; files are named by numeric ids.

The alphabet is that of RocketMQ 5 (`^[%a-zA-Z0-9_-]+$`), so that its SDKs and ours refuse the same names.
"""

import re
from functools import lru_cache

TOPIC_LENGTH_MAX = 127  # RocketMQ 5, topic name
GROUP_LENGTH_MAX = 120  # RocketMQ 5, consumer group name
BROKER_LENGTH_MAX = 127
CLIENT_LENGTH_MAX = 255

RETRY_PREFIX = "%RETRY%"
DLQ_PREFIX = "%DLQ%"
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
GIVEN_UP_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
"""Topic of half messages that were neither committed nor rolled back after all checks; every group may read it."""
RESERVED_TOPICS = frozenset(
    {SCHEDULE_TOPIC, GIVEN_UP_TOPIC, "TBW102", "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"}
)

TABLE_PREFIX = "evenq-table-"

_LEGAL = re.compile(r"[%a-zA-Z0-9_-]+\Z")


def topic_problem(name: str) -> str | None:
    """Returns the problem of a topic name, as a sentence; None if the name is valid."""
    return _problem("topic name", name, TOPIC_LENGTH_MAX)


def group_problem(name: str) -> str | None:
    """Returns the problem of a consumer group name, as a sentence; None if the name is valid."""
    return _problem("consumer group name", name, GROUP_LENGTH_MAX)


def broker_problem(name: str) -> str | None:
    """Returns the problem of a broker name; `room@name` is valid, for the machine-room strategies (AL-15)."""
    return _problem("broker name", name.replace("@", "-"), BROKER_LENGTH_MAX)


def text_problem(what: str, text: str, length_max: int = CLIENT_LENGTH_MAX) -> str | None:
    """Returns the problem of a text that a client reports and a server keeps, as a sentence; None if it is valid."""
    if len(text) > length_max:
        return f"{what} has {len(text)} characters, the limit is {length_max}; give a shorter one"
    if not text.isprintable():
        return f"{what} is {text[:80]!r}, which is not printable; give 1 to {length_max} printable characters"
    return None


@lru_cache(4096)
def table_group(topic: str) -> str:
    """Returns the group whose offsets are the ends of a topic's table, in the namespace of the topic. Retention waits
    for them. Empty: the topic is a system topic, or its name is too long.
    """
    namespace, separator, name = topic.rpartition("%")
    group = f"{namespace}{separator}{TABLE_PREFIX}{name}"
    return "" if is_system_topic(topic) or len(group) > GROUP_LENGTH_MAX else group


def table_topic(group: str) -> str:
    """Returns the topic whose table a group stands for; empty for any other group."""
    namespace, separator, name = group.rpartition("%")
    topic = namespace + separator + name.removeprefix(TABLE_PREFIX)
    return topic if name.startswith(TABLE_PREFIX) and table_group(topic) == group else ""


@lru_cache(4096)
def is_system_topic(name: str) -> bool:
    """True for topics that only the broker may write or create."""
    return name in RESERVED_TOPICS or name.startswith((RETRY_PREFIX, DLQ_PREFIX))


def _problem(what: str, name: str, length_max: int) -> str | None:
    if not isinstance(name, str):
        return f"the {what} is {name!r:.80}, give a text"
    if not name:
        return f"the {what} is empty; give 1 to {length_max} characters of letters, digits, '%', '_' and '-'"
    if len(name) > length_max:
        return f"the {what} has {len(name)} characters, the limit is {length_max}"
    if not _LEGAL.match(name):
        return f"the {what} {name!r} holds a character outside letters, digits, '%', '_' and '-'"
    return None
