"""Names and numbers, of topics as of groups."""

from operator import attrgetter

from evenq_broker.core.state.name_table import NameTable

from evenq.model import TopicConfig


def topic(name: str, topic_id: int, queues: int = 4) -> TopicConfig:
    return TopicConfig(name=name, topic_id=topic_id, read_queues=queues, write_queues=queues)


def table(*topics: TopicConfig) -> NameTable[TopicConfig]:
    made: NameTable[TopicConfig] = NameTable(attrgetter("topic_id"))
    for one in topics:
        made.put(one)
    return made


def test_a_config_is_found_by_name_and_by_number_and_listed_by_name() -> None:
    made = table(topic("b", 1), topic("a", 2))
    assert made.get("a") == made.by_id(2) == topic("a", 2)
    assert [one.name for one in made.all()] == ["a", "b"]
    assert (made.get("c"), made.by_id(3), len(made)) == (None, None, 2)


def test_a_number_is_never_used_twice() -> None:
    made = table(topic("a", 1), topic("b", 2))
    assert made.remove("b") == topic("b", 2)
    assert (made.next_id(), made.by_id(2)) == (3, None)
    made.reserve(9)
    made.reserve(4)
    assert made.next_id() == 9


def test_a_replaced_config_leaves_its_old_number() -> None:
    made = table(topic("a", 1))
    made.put(topic("a", 5))
    assert (made.by_id(1), made.by_id(5)) == (None, topic("a", 5))


def test_the_version_grows_with_changes_only() -> None:
    made = table(topic("a", 1))
    assert made.version == 1
    made.put(topic("a", 1))
    assert made.remove("b") is None
    assert made.version == 1
    made.put(topic("a", 1, queues=8))
    made.remove("a")
    assert made.version == 3
