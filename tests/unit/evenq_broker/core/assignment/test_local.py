"""What a member should read, computed at the broker, and the last answer of the rebalancer."""

from collections.abc import Sequence

from evenq_broker.core.assignment.local import Answer, LastAnswers, all_brokers, compute

from evenq.model import MessageQueue

QUEUES = [MessageQueue("t", broker, queue_id) for broker in ("a", "b") for queue_id in range(3)]


def circle(_group: str, client: str, queues: Sequence[MessageQueue], clients: Sequence[str]) -> list[MessageQueue]:
    return list(queues[clients.index(client) :: len(clients)])


def test_by_default_every_member_gets_every_broker_with_id_minus_one() -> None:
    wanted = (MessageQueue("t", "a", -1), MessageQueue("t", "b", -1))
    assert all_brokers(QUEUES) == wanted
    assert compute("g", "me", QUEUES, [], None) == Answer(wanted)


def test_a_strategy_shares_each_queue_once() -> None:
    parts = [compute("g", client, QUEUES, ["x", "y"], circle).queues for client in ("x", "y")]
    assert sorted(parts[0] + parts[1]) == QUEUES


def test_a_member_whose_heartbeat_has_not_come_is_counted() -> None:
    assert compute("g", "new", QUEUES, ["x"], circle).queues == tuple(QUEUES[0::2])


def test_no_readable_queue_is_an_empty_answer_and_no_error() -> None:
    assert compute("g", "me", [], ["me"], circle).queues == ()
    assert compute("g", "me", [], ["me"], None).queues == ()


def test_the_last_answer_is_repeated_without_brokers_that_are_gone() -> None:
    answers = LastAnswers()
    answers.keep("g", "t", "me", Answer(tuple(QUEUES), "AVG", 1, 7))
    repeated = answers.repeat("g", "t", "me", lambda broker: broker == "b")
    assert repeated == Answer(tuple(QUEUES[3:]), "AVG", 1, 7)
    assert answers.repeat("g", "t", "other", lambda _: True) is None


def test_a_late_answer_never_wins_over_a_newer_one() -> None:
    answers = LastAnswers()
    newer = Answer((QUEUES[0],), "AVG", 1, 8)
    assert answers.keep("g", "t", "me", newer) is newer
    assert answers.keep("g", "t", "me", Answer((QUEUES[1],), "AVG", 1, 7)) is newer
    restarted = Answer((), "AVG", 2, 1)
    assert answers.keep("g", "t", "me", restarted) is restarted


def test_answers_have_a_maximum_and_the_oldest_goes_first() -> None:
    answers = LastAnswers(answers_max=2)
    for client in ("x", "y", "z"):
        answers.keep("g", "t", client, Answer(()))
    assert len(answers) == 2
    assert answers.repeat("g", "t", "x", lambda _: True) is None
    answers.check()


def test_a_client_that_left_is_forgotten_in_the_groups_it_left() -> None:
    answers = LastAnswers()
    answers.keep("g", "t", "me", Answer(()))
    answers.keep("h", "t", "me", Answer(()))
    answers.forget("me", ["g"])
    assert answers.repeat("g", "t", "me", lambda _: True) is None
    assert answers.repeat("h", "t", "me", lambda _: True) is not None
    answers.check()
    answers.forget("me", ["g", "h"])
    answers.forget("stranger", ["g"])
    assert len(answers) == 0
    answers.check()


def test_answers_are_found_by_group_and_the_index_follows_whatever_happens() -> None:
    answers = LastAnswers(answers_max=3)
    for number, (group, topic, client) in enumerate(
        [("g", "t", "x"), ("g", "u", "x"), ("g", "t", "y"), ("h", "t", "x")]
    ):
        answers.keep(group, topic, client, Answer((), epoch=1, counter=number))
        answers.check()
    assert {client: [answer.counter for answer in reported] for client, reported in answers.of_group("g").items()} == {
        "x": [1],
        "y": [2],
    }, "the oldest made room"
    answers.forget("x", ["g", "nowhere"])
    answers.check()
    assert list(answers.of_group("g")) == ["y"]
    assert answers.of_group("nowhere") == {}
