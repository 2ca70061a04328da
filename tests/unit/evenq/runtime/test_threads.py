"""A thread beside a loop without a rest."""

import sys
import threading

import pytest

from evenq.runtime.threads import let_threads_run


@pytest.fixture
def nobody_is_made_to_stop():
    before = sys.getswitchinterval()
    sys.setswitchinterval(100)
    yield
    sys.setswitchinterval(before)


def test_a_thread_that_waits_gets_the_interpreter(nobody_is_made_to_stop: None) -> None:
    """Else it would wait for a minute and more: the test's own thread never stops working by itself."""
    begin, ran = threading.Lock(), threading.Lock()
    begin.acquire()
    ran.acquire()

    def work() -> None:
        begin.acquire()
        ran.release()

    thread = threading.Thread(target=work)
    thread.start()
    begin.release()
    rests = 0
    while ran.locked():
        sum(range(1_000))
        let_threads_run()
        rests += 1
        assert rests < 100_000, "it never runs"
    thread.join()
