"""The checker finds each planted anomaly and names it, and finds nothing in good histories."""

import time

import pytest
from evenq_proofs.good_history import good_history
from evenq_proofs.planting import plant

from evenq.errors import BadRequest
from evenq.testing.checker import AnomalyKind, Tolerances, check
from evenq.testing.checker.__main__ import main
from evenq.testing.history import Delivery, Event, write_history

GOOD = {seed: good_history(seed) for seed in range(3)}


class Script:
    """A short history, written by hand."""

    def __init__(self):
        self.events, self.now, self.ids = [], 0, 0

    def begin(self, op, **fields):
        self.ids += 1
        self.now += 10
        self.events.append(Event(kind="invoke", at_ms=self.now, id=self.ids, op=op, **fields))
        return self.ids

    def end(self, number, kind="ok", **fields):
        self.now += 10
        self.events.append(Event(kind=kind, at_ms=self.now, id=number, **fields))
        return self

    def send(self, body, offset, kind="ok", queue="t/a/0", **fields):
        number = self.begin("send", topic="t", body=body, **fields)
        return self.end(number, kind, **({"queue": queue, "offset": offset} if kind == "ok" else {}))

    def receive(self, *places, group="g", invisible_ms=1_000, queue="t/a/0", attempt=1):
        number = self.begin("receive", group=group, topic="t", invisible_ms=invisible_ms)
        return self.end(number, messages=[Delivery(queue, offset, body, attempt) for body, offset in places])

    def do(self, op, **fields):
        answer = {key: fields.pop(key) for key in ("messages",) if key in fields}
        return self.end(self.begin(op, **fields), **answer)

    def world(self, kind, name, target=""):
        self.now += 10
        self.events.append(Event(kind=kind, at_ms=self.now, op=name, target=target))
        return self

    def kinds(self, **limits):
        return set(check(self.events, limits=Tolerances(**limits)).counts)


@pytest.mark.slow
def test_a_hundred_good_histories_raise_no_false_alarm():
    for seed in range(100):
        report = check(good_history(seed), limits=Tolerances(stored_once=True))
        assert report.ok, f"seed {seed}: {report}"
        assert report.delivered > 300


@pytest.mark.parametrize("kind", list(AnomalyKind))
def test_a_planted_anomaly_is_found_and_named(kind):
    for seed, history in GOOD.items():
        report = check(plant(kind, history, seed), limits=Tolerances(stored_once=True))
        assert set(report.counts) == {kind}, f"seed {seed}: {report}"


def test_at_least_fourteen_kinds_are_known():
    assert len(AnomalyKind) >= 14


def test_the_same_seed_makes_the_same_history():
    assert good_history(7) == good_history(7)
    assert good_history(7) != good_history(8)


def test_a_hundred_thousand_operations_are_judged_in_about_a_second():
    history = good_history(1, messages=600)
    operations = sum(event.kind == "invoke" for event in history)
    start = time.process_time()
    check(history)
    spent = time.process_time() - start
    assert operations / spent > 50_000, "the goal is 100,000 a second; half of it leaves room for a busy machine"


def test_a_repeat_after_the_invisible_time_is_no_anomaly():
    script = Script().send("m", 0).receive(("m", 0), invisible_ms=100)
    script.now += 200
    assert script.receive(("m", 0)).kinds() == set()


def test_a_repeat_within_the_invisible_time_is_one():
    assert Script().send("m", 0).receive(("m", 0)).receive(("m", 0)).kinds() == {AnomalyKind.DUPLICATE_GRACEFUL}


def test_a_repeat_after_a_fault_is_excused():
    script = Script().send("m", 0).receive(("m", 0)).world("fault", "kill", "a").world("heal", "kill", "a")
    assert script.receive(("m", 0)).kinds() == set()


def test_a_message_that_was_given_back_may_come_at_once():
    script = Script().send("m", 0).receive(("m", 0)).do("extend", group="g", queue="t/a/0", offset=0, invisible_ms=0)
    assert script.receive(("m", 0)).kinds() == set()


def test_a_fault_does_not_excuse_a_repeat_after_an_ack():
    script = Script().send("m", 0).receive(("m", 0)).do("ack", group="g", queue="t/a/0", offset=0)
    script.world("fault", "kill", "a").world("heal", "kill", "a")
    assert script.receive(("m", 0)).kinds() == {AnomalyKind.DUPLICATE_AFTER_ACK}


def test_an_unclear_ack_lets_the_message_come_again():
    script = Script().send("m", 0).receive(("m", 0), invisible_ms=50)
    script.end(script.begin("ack", group="g", queue="t/a/0", offset=0), "info")
    script.now += 100
    assert script.receive(("m", 0)).kinds() == set()


def test_an_answer_under_way_while_an_acked_message_was_out_is_judged_by_its_lease():
    script = Script().send("m", 0)
    poll = script.begin("receive", group="g", topic="t", invisible_ms=1_000)
    script.receive(("m", 0)).do("ack", group="g", queue="t/a/0", offset=0)
    assert script.end(poll, messages=[Delivery("t/a/0", 0, "m", 2)]).kinds() == {AnomalyKind.DUPLICATE_AFTER_ACK}


def test_a_reset_allows_repeats():
    script = Script().send("m", 0).receive(("m", 0)).do("offset", action="commit", group="g", queue="t/a/0", offset=1)
    script.do("offset", action="reset", group="g", queue="t/a/0", offset=0)
    assert script.receive(("m", 0)).kinds() == set()


def test_a_pull_behind_the_committed_offset_is_a_duplicate_after_ack():
    script = Script().send("m", 0).receive(("m", 0), invisible_ms=0)
    script.do("offset", action="commit", group="g", queue="t/a/0", offset=1)
    assert script.receive(("m", 0), invisible_ms=0).kinds() == {AnomalyKind.DUPLICATE_AFTER_ACK}


def test_sends_one_after_another_must_have_growing_offsets():
    assert Script().send("m", 5).send("n", 4).kinds() == {AnomalyKind.REORDERED_IN_QUEUE}


def test_receives_side_by_side_may_arrive_in_any_order():
    script = Script().send("m", 0).send("n", 1)
    first = script.begin("receive", group="g", topic="t", invisible_ms=1_000)
    script.receive(("n", 1))
    assert script.end(first, messages=[Delivery("t/a/0", 0, "m")]).kinds() == set()


def test_a_group_that_wants_some_tags_need_not_see_the_others():
    script = Script().do("admin", action="subscribe", group="g", topic="t", tag="red || blue")
    script.send("m", 0, tag="red").send("n", 1, tag="green").receive(("m", 0))
    script.do("ack", group="g", queue="t/a/0", offset=0)
    assert script.do("admin", action="drain", group="g", topic="t").kinds() == set()


def test_a_message_that_only_a_scan_finds_is_unseen_and_not_lost():
    script = Script().send("m", 0).do("admin", action="drain", group="g", topic="t")
    script.do("admin", action="scan", queue="t/a/0", messages=[Delivery("t/a/0", 0, "m")])
    assert script.kinds() == {AnomalyKind.UNSEEN}


def test_a_killed_owner_no_longer_holds_its_queues():
    script = Script().do("admin", action="lock", group="g", queue="t/a/0", process="c1")
    script.world("fault", "kill", "c1")
    assert script.do("admin", action="lock", group="g", queue="t/a/0", process="c2").kinds() == set()


def test_an_owner_that_gives_up_within_the_millisecond_of_its_lock_holds_nothing():
    # As merged: within one millisecond all operations begin before the first ends.
    script = Script()
    lock = script.begin("admin", action="lock", group="g", queue="t/a/0", process="c1")
    unlock = script.begin("admin", action="unlock", group="g", queue="t/a/0", process="c1")
    script.end(lock).end(unlock)
    assert script.do("admin", action="lock", group="g", queue="t/a/0", process="c2").kinds() == set()
    again = script.do("admin", action="lock", group="g", queue="t/a/0", process="c3")
    assert again.kinds() == {AnomalyKind.TWO_OWNERS}


def test_the_recovery_time_of_a_fault_runs_to_the_first_success_at_its_target():
    script = Script().send("m", 0).send("x", 0, queue="t/b/0").world("fault", "kill", "a")
    script.send("n", 1, queue="t/b/0").send("o", 1)
    (fault,) = check(script.events).faults
    assert fault.rto_ms == 40


def test_a_recovery_beyond_the_limit_is_an_anomaly():
    script = Script().send("m", 0).world("fault", "kill", "a").send("o", 1)
    assert script.kinds(recovery_ms_max=5) == {AnomalyKind.SLOW_RECOVERY}


def test_an_end_without_its_invoke_is_refused():
    with pytest.raises(BadRequest, match="line 1: ok of operation 9"):
        check([Event(kind="ok", at_ms=1, id=9)])


def test_an_id_in_use_is_refused():
    with pytest.raises(BadRequest, match="already open since line 1"):
        check([Event(kind="invoke", at_ms=1, id=1, op="send", body=body) for body in "ab"])


def test_an_unknown_operation_is_refused():
    with pytest.raises(BadRequest, match="'jump' is not one of"):
        check([Event(kind="invoke", at_ms=1, id=1, op="jump")])


def test_the_command_prints_a_table_and_tells_the_verdict_by_its_exit_code(tmp_path, capsys):
    good, bad = tmp_path / "good.jsonl", tmp_path / "bad.jsonl"
    write_history(good, GOOD[0])
    write_history(bad, plant(AnomalyKind.LOST, GOOD[0], 0))
    assert main([str(good)]) == 0
    assert "OK: no anomaly" in capsys.readouterr().out
    assert main([str(bad)]) == 1
    assert "is gone" in capsys.readouterr().out
    assert main([str(tmp_path / "none.jsonl")]) == 2
    assert "none.jsonl" in capsys.readouterr().err
