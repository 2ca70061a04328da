"""A real broker is killed while it is sent to: its folder is clean for `evenq store verify`, before and after the next
start, and beside the running broker.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading

import pytest

import evenq
from evenq.errors import Error, RequestTimeout
from evenq.runtime.clock import SystemClock
from evenq.testing import LocalCluster

DEADLINE_MS = 60_000
KILLS = 3


def tool(*words):
    command = [sys.executable, "-m", "evenq.cli", "store", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout, done.stderr


def verified(folder):
    code, out, err = tool("verify", folder, "--json")
    assert code == 0, f"{out}{err}"
    return json.loads(out)


def keep_sending(endpoints, sent, stop):
    options = evenq.ProducerOptions(max_attempts=1, timeout_ms=1_000, linger_ms=0)
    with evenq.Producer(endpoint=endpoints, options=options) as producer:
        while not stop.is_set():
            number = len(sent)
            try:
                producer.send(evenq.Message(topic="orders", body=b"%d." % number * 200, keys=(f"k{number}",)))
            except Error:
                stop.wait(0.01)  # the broker that comes back needs the processor, too
                continue
            sent.append(number)


def wait_for(sent, count, stop):
    clock = SystemClock()
    end_ms = clock.monotonic_ms() + DEADLINE_MS
    while len(sent) < count and not stop.wait(0.02):
        if clock.monotonic_ms() > end_ms:
            raise RequestTimeout(f"{len(sent)} of {count} messages were sent in {DEADLINE_MS} ms")


@pytest.mark.slow  # a cluster that is killed, and many commands
def test_a_folder_is_clean_before_and_after_the_start_that_follows_a_kill(tmp_path):
    sent, stop = [], threading.Event()
    with LocalCluster(folder=tmp_path, rebalancer=False) as cluster:
        broker = cluster.brokers[0]
        folder = tmp_path / broker.name
        sending = threading.Thread(target=keep_sending, args=(cluster.endpoints, sent, stop))
        sending.start()
        try:
            for _ in range(KILLS):
                wait_for(sent, len(sent) + 50, stop)
                assert verified(folder)["state"].startswith("running")
                broker.kill()
                before = verified(folder)
                assert before["state"].startswith("not stopped in order")
                assert {finding["kind"] for finding in before["findings"]} <= {"torn-tail", "left-over"}
                broker.restart()
                assert verified(folder)["log_end"] >= before["log_start"]
        finally:
            stop.set()
            sending.join(60)
        kept = verified(folder)
        cluster.stop(keep=True)
    assert verified(folder)["state"] == "stopped in order"
    assert verified(folder)["messages"] >= len(sent)
    assert kept["findings"] == []
    code, out, err = tool("dump", folder, "--topic", "orders")
    assert code == 0, err
    keys = [json.loads(line)["keys"][0] for line in out.splitlines()]
    assert set(keys) >= {f"k{number}" for number in sent}
