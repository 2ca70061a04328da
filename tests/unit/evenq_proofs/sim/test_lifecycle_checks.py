"""Each rule finds what it is for, in the shortest history that shows it, and nothing in a good one."""

import pytest
from evenq_proofs.sim.lifecycle_checks import LifecycleEnding, Run, Sent, judge_lifecycles

Q = "t@a:0"
AT_END_US = 99_000


def sent(body: int, at_us: int = 10, **more: object) -> Sent:
    return Sent(body, at_us, **{"acknowledged_us": at_us + 1, "place": ("a", "uid"), "queue": Q, **more})  # type: ignore[arg-type]


def run(body: int, start_us: int, member: str = "m1", **more: object) -> Run:
    given = {"group_life": 1, "queue": Q, "offset": 0, "attempt": 1, "end_us": start_us + 5, "how": "done", **more}
    return Run(body, member, start_us=start_us, **given)  # type: ignore[arg-type]


def found(messages: list[Sent], runs: list[Run], **more: object) -> list[str]:
    given = {
        "graceful": True, "ordered": True, "uids": {"a": "uid"}, "wanted_from_us": -1, "held": (), "unheard": (), **more,
    }  # fmt: skip
    ending = LifecycleEnding(at_us=AT_END_US, **given)  # type: ignore[arg-type]
    return [problem.check for problem in judge_lifecycles(messages, runs, ending)]


def test_a_good_history_has_no_problem() -> None:
    messages = [sent(1, message_group="g"), sent(2, 20, message_group="g")]
    assert found(messages, [run(1, 12), run(2, 22)]) == []


def test_an_acknowledged_message_that_nobody_finished_is_unread() -> None:
    assert found([sent(1)], [run(1, 12, how="failed")]) == ["unread"]


@pytest.mark.parametrize(
    "more",
    [{"uids": {"a": "another"}}, {"uids": {}}, {"wanted_from_us": 10}],
    ids=["of a deleted topic", "of a broker that is gone", "from before the group began"],
)
def test_a_message_is_not_missed(more: dict[str, object]) -> None:
    assert found([sent(1)], [], **more) == []


def test_one_that_was_not_acknowledged_is_not_missed() -> None:
    assert found([sent(1, acknowledged_us=0)], []) == []


@pytest.mark.parametrize("lane", ["", "g"])
def test_a_second_listener_before_the_first_one_ended_is_found(lane: str) -> None:
    messages = [sent(1, message_group=lane), sent(2, message_group=lane)]
    assert found(messages, [run(1, 12), run(2, 13, "m2")]) == ["two listeners"]
    assert found(messages, [run(1, 12), run(2, 17, "m2")]) == []
    assert found(messages, [run(1, 12, excused=True), run(2, 13, "m2")]) == []
    assert found(messages, [run(1, 12), run(2, 13, "m2")], ordered=False) == []


def test_a_queue_of_the_topic_that_was_made_again_is_another_one() -> None:
    messages = [sent(1), sent(2, place=("a", "another"))]
    assert found(messages, [run(1, 12), run(2, 13, "m2")]) == []


def test_an_attempt_that_its_group_has_not_begun_is_an_old_retry() -> None:
    before = run(1, 12, how="failed")
    assert found([sent(1)], [before, run(1, 20, group_life=2, attempt=2)]) == ["old retry"]
    assert (
        found([sent(1)], [before, run(1, 20, group_life=2), run(1, 30, group_life=2, attempt=2)], graceful=False) == []
    )


def test_an_attempt_after_a_killed_member_had_fetched_the_message_is_not_an_old_retry() -> None:
    before = run(1, 12)
    assert found([sent(1)], [before, run(1, 20, group_life=2, attempt=2, handed_out=2)]) == []
    assert found([sent(1)], [before, run(1, 20, group_life=2, attempt=3, handed_out=2)]) == ["old retry"]


def test_a_message_group_out_of_order_is_found_at_first_deliveries() -> None:
    messages = [sent(1, message_group="g"), sent(2, message_group="g")]
    assert found(messages, [run(2, 12), run(1, 22)]) == ["out of order"]
    assert found(messages, [run(1, 12, how="failed"), run(2, 22), run(1, 32)]) == []


def test_what_was_finished_does_not_come_again_in_a_graceful_world() -> None:
    runs = [run(1, 12), run(1, 22)]
    assert found([sent(1)], runs) == ["again"]
    assert found([sent(1)], runs, graceful=False) == []
    assert found([sent(1, tries=2)], runs) == []


def test_a_delayed_message_before_its_time_is_early() -> None:
    assert found([sent(1, due_us=5_000)], [run(1, 12)]) == ["early"]
    assert found([sent(1, due_us=5_000)], [run(1, 5_000)]) == []


def test_what_is_kept_for_the_gone_and_what_was_not_said_is_found() -> None:
    assert found([], [], held=((Q, "a keeps 1"),), unheard=("m1 was not told",)) == ["held", "unheard"]
