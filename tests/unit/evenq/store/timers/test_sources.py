"""Tables and runs give their keys in order, whatever ended meanwhile."""

from __future__ import annotations

from evenq.store.timers.keys import id_of, key_of
from evenq.store.timers.runs import RunFile
from evenq.store.timers.sources import DEAD_MIN, EndedTimers, TimerRun, TimerTable


def test_a_table_gives_what_has_not_ended_in_order():
    table = TimerTable()
    for timer_id, due in ((1, 30), (2, 10), (3, 20)):
        table.put(timer_id, key_of(due, timer_id, 1))
    assert table.end(2)
    assert not table.end(2)
    assert [id_of(table.pop()) for _ in range(2) if table.head(EndedTimers())] == [3, 1]
    assert table.head(EndedTimers()) is None


def test_a_table_forgets_ended_keys_before_they_fill_it():
    table = TimerTable()
    for timer_id in range(10 * DEAD_MIN):
        table.put(timer_id, key_of(99, timer_id, 1))
        table.end(timer_id)
    assert len(table._heap) <= DEAD_MIN + 1


def test_what_is_taken_while_a_table_is_copied_is_noted():
    table = TimerTable()
    for timer_id in (1, 2, 3):
        table.put(timer_id, key_of(timer_id, timer_id, 1))
    table.gone = set()
    table.end(3)
    table.head(EndedTimers())
    table.pop()
    assert table.gone == {1, 3}


def test_a_run_drops_ended_entries_with_their_mark_and_knows_its_next_block():
    keys = [key_of(n, n, 1) for n in range(600)]
    run = TimerRun(RunFile(1, 600, 0, (keys[0], keys[512]), 600), used=2)
    assert run.due_head() == keys[0]
    run.read_on(0, keys[:512])
    ended = EndedTimers()
    ended.update({2, 3, 99})
    ended.watches.append(watch := set())
    assert run.head(ended) == keys[4]
    assert (ended, watch) == ({99}, {2, 3})
    assert (run.used, run.left) == (4, 596)
    run.ahead.clear()
    assert run.due_head() == keys[512]
