"""Names of topics, groups and brokers; they never become paths."""

import pytest

from evenq.model.names import (
    BROKER_LENGTH_MAX,
    GROUP_LENGTH_MAX,
    TOPIC_LENGTH_MAX,
    broker_problem,
    group_problem,
    is_system_topic,
    table_group,
    table_topic,
    topic_problem,
)

RULES = [
    (topic_problem, TOPIC_LENGTH_MAX, "topic name"),
    (group_problem, GROUP_LENGTH_MAX, "consumer group name"),
    (broker_problem, BROKER_LENGTH_MAX, "broker name"),
]


@pytest.mark.parametrize(("problem", "length_max", "what"), RULES)
def test_a_name_has_one_to_the_limit_of_the_alphabets_characters(problem, length_max, what):
    for good in ("a", "A-b_9", "%RETRY%g", "x" * length_max):
        assert problem(good) is None
    assert problem("x" * (length_max + 1)) == f"the {what} has {length_max + 1} characters, the limit is {length_max}"
    assert f"give 1 to {length_max} characters" in problem("")


@pytest.mark.parametrize("bad", ["a b", "a/b", "..", "a.b", "é", "a\n", "\0", "a:b", "日本"])
@pytest.mark.parametrize(("problem", "length_max", "what"), RULES)
def test_any_other_character_is_refused_with_the_name(problem, length_max, what, bad):
    assert f"the {what} {bad!r} holds a character outside" in problem(bad)


def test_only_a_broker_may_have_its_room_in_its_name():
    assert broker_problem("room-1@a") is None
    assert topic_problem("room-1@a") is not None


@pytest.mark.parametrize(
    ("name", "system"),
    [("%DLQ%g", True), ("%RETRY%g", True), ("TBW102", True), ("DLQ", False), ("g%DLQ%", False), ("orders", False)],
)
def test_the_brokers_own_topics_are_known_by_their_prefix_or_name(name, system):
    assert is_system_topic(name) is system


@pytest.mark.parametrize(
    ("topic", "group"),
    [
        ("orders", "evenq-table-orders"),
        ("shop%orders", "shop%evenq-table-orders"),
        ("evenq-table-x", "evenq-table-evenq-table-x"),
        ("a%b%c", "a%b%evenq-table-c"),
        ("x" * 108, "evenq-table-" + "x" * 108),
        ("x" * 109, ""),
        ("%DLQ%billing", ""),
        ("%RETRY%billing", ""),
    ],
)
def test_a_table_group_has_the_namespace_of_its_topic_and_leads_back_to_it(topic: str, group: str) -> None:
    assert table_group(topic) == group
    if group:
        assert group_problem(group) is None
        assert table_topic(group) == topic


@pytest.mark.parametrize("group", ["orders", "evenq-table", "", "shop%orders", "evenq-table-%DLQ%x"])
def test_other_groups_stand_for_no_table(group: str) -> None:
    assert table_topic(group) == ""
