"""Recording and reading of histories."""

import json
import threading

import pytest
from evenq_proofs.good_history import good_history

from evenq.errors import BadRequest
from evenq.runtime.clock import FakeClock
from evenq.testing.history import Delivery, Op, Recorder, merge_histories, read_history, write_history


def test_a_written_history_reads_back_the_same(tmp_path):
    events = good_history(3, messages=5)
    write_history(tmp_path / "h", events)
    assert list(read_history(tmp_path / "h")) == events


def test_a_recorder_writes_one_line_an_event(tmp_path):
    with Recorder(tmp_path / "h", clock=FakeClock()) as recorder:
        send = recorder.invoke(Op.SEND, topic="t", body="m", process="p")
        recorder.ok(send, queue="t/a/0", offset=4)
        receive = recorder.invoke(Op.RECEIVE, group="g")
        recorder.ok(receive, messages=[Delivery("t/a/0", 4, "m")])
        recorder.info(recorder.invoke(Op.ACK, group="g"), error="timeout")
        recorder.fail(recorder.invoke(Op.SEND, body="n"))
        recorder.fault("kill", target="a")
        recorder.heal("kill", target="a")
    events = list(read_history(tmp_path / "h"))
    assert [event.kind for event in events] == [
        *["invoke", "ok", "invoke", "ok", "invoke", "info", "invoke", "fail", "fault", "heal"]
    ]
    assert events[1].offset == 4
    assert events[3].messages == [Delivery("t/a/0", 4, "m", 1)]


def test_a_recorder_keeps_at_most_its_buffer_in_memory(tmp_path):
    recorder = Recorder(tmp_path / "h", clock=FakeClock(), buffer_events_max=10)
    for number in range(25):
        recorder.invoke(Op.SEND, body=str(number))
    assert len(list(read_history(tmp_path / "h"))) == 20
    recorder.flush()
    assert len(list(read_history(tmp_path / "h"))) == 25
    recorder.close()
    recorder.close()


def test_a_buffer_of_nothing_is_refused(tmp_path):
    with pytest.raises(BadRequest, match="buffer_events_max=0"):
        Recorder(tmp_path / "h", clock=FakeClock(), buffer_events_max=0)


def test_threads_may_share_a_recorder(tmp_path):
    with Recorder(tmp_path / "h", clock=FakeClock(), buffer_events_max=7) as recorder:

        def work():
            for _ in range(500):
                recorder.ok(recorder.invoke(Op.SEND, body="x"))

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    events = list(read_history(tmp_path / "h"))
    assert len(events) == 4_000
    assert len({event.id for event in events}) == 2_000


def test_a_torn_last_line_is_left_out(tmp_path):
    write_history(tmp_path / "h", good_history(1, messages=2))
    whole = (tmp_path / "h").read_text()
    (tmp_path / "h").write_text(whole + '{"kind":"inv')
    assert list(read_history(tmp_path / "h")) == good_history(1, messages=2)


@pytest.mark.parametrize("line", ["nonsense", '{"kind":"ok","at_ms":1,"colour":"red"}', "[1]", '{"at_ms":2}'])
def test_a_line_that_is_no_event_is_named(tmp_path, line):
    (tmp_path / "h").write_text(json.dumps({"kind": "heal", "at_ms": 1}) + "\n" + line + "\n")
    with pytest.raises(BadRequest, match=r"line 2: not an event"):
        list(read_history(tmp_path / "h"))


def test_histories_of_several_processes_merge_by_time_with_new_ids():
    merged = list(merge_histories([good_history(1, messages=3), good_history(2, messages=3)]))
    assert [event.at_ms for event in merged] == sorted(event.at_ms for event in merged)
    begun = [event.id for event in merged if event.kind == "invoke"]
    assert len(begun) == len(set(begun))


def test_within_a_millisecond_invokes_come_before_ends_when_histories_merge():
    first, second = good_history(1, messages=3), good_history(2, messages=3)
    for event in (*first, *second):
        event.at_ms = 0
    kinds = [event.kind == "invoke" for event in merge_histories([first, second]) if event.kind != "fault"]
    assert kinds == sorted(kinds, reverse=True)
