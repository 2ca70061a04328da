"""What is counted of two SDKs' messages while brokers change: a pause of reading is not a message that comes again."""

from __future__ import annotations

import io
import json
import sys
import threading
import time
from typing import Any

import load_peer
import pytest
from evenq_helm.sdk_load import figures

INVISIBLE_S = 30.0


def produced(*times: float) -> dict[str, Any]:
    return {"sent": list(enumerate(times)), "errors": {}}


def consumed(*got: tuple[int, float], unacked: tuple[int, ...] = ()) -> dict[str, Any]:
    acked = {number: at for number, at in got if number not in unacked}
    return {"got": list(got), "acked": list(acked.items()), "errors": {}}


def test_a_message_whose_acknowledgement_failed_is_no_pause_of_reading() -> None:
    """As `make kubernetes-replicated` had it: the leader changed 20 s before the last send, and one message comes again."""
    times = [float(at) for at in range(21)]
    came = [(number, at + 0.1) for number, at in enumerate(times)]
    found = figures(produced(*times), consumed(*came, (0, times[0] + INVISIBLE_S)))
    assert (found.reading_gaps_s[0], found.came_again) == (1.0, 1)


def test_consumers_that_stand_still_are_a_pause_whenever_it_ends() -> None:
    times = [float(at) for at in range(21)]
    stood = [(number, at + (8.0 if 5 <= at < 13 else 0.1)) for number, at in enumerate(times)]
    assert figures(produced(*times), consumed(*stood)).reading_gaps_s[0] > 7
    until_the_end = [(number, at if at < 12 else 40.0) for number, at in enumerate(times)]
    assert figures(produced(*times), consumed(*until_the_end)).reading_gaps_s[0] == 9.0


def test_what_was_acknowledged_and_comes_again_is_repeated() -> None:
    found = figures(produced(1.0, 2.0), consumed((0, 1.1), (1, 2.1), (1, 2.5)))
    assert (found.lost, found.repeated) == (0, 0), "its acknowledgement was answered after it came again"
    late = consumed((0, 1.1), (1, 2.1))
    late["got"].append((1, 32.1))
    assert figures(produced(1.0, 2.0), late).repeated == 1


def test_a_consumer_that_is_behind_reads_on_and_one_to_which_nothing_comes_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As a run of ten minutes had it: what had not been read 90 s after the last send was counted as lost."""
    monkeypatch.setattr(load_peer, "END_S", 2.0)
    load, wanted = load_peer.Load(), list(range(5))
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(wanted) + "\n"))
    waiting = threading.Thread(target=load.wait_for_the_end)
    waiting.start()
    for number in wanted:
        time.sleep(0.7)
        assert not load.stop.is_set(), f"after {number} of {len(wanted)}"
        load.acked.append((number, time.monotonic()))
    assert load.stop.wait(1.5)
    waiting.join()
    stuck = load_peer.Load()
    monkeypatch.setattr(sys, "stdin", io.StringIO("[1, 2]\n"))
    stuck.acked.append((1, 0.0))
    stuck.wait_for_the_end()
    assert stuck.stop.is_set()


def test_a_consumer_that_has_received_all_waits_only_until_messages_would_come_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An acknowledgement that worked, and whose answer was lost with the leader: that message never comes again."""
    monkeypatch.setattr(load_peer, "COMES_AGAIN_S", 0.5)
    load = load_peer.Load()
    monkeypatch.setattr(sys, "stdin", io.StringIO("[1, 2]\n"))
    load.got += [(1, 0.0), (2, 0.0)]
    load.acked.append((1, 0.0))
    ended = threading.Thread(target=load.wait_for_the_end)
    ended.start()
    assert load.stop.wait(load_peer.END_S / 3)
    ended.join()
