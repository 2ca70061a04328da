"""A process with local queues is killed (-9) in the middle of its work; the next one finds all that it was answered."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

import evenq.local

VICTIM = """
import sys, threading
import evenq.local

queues = evenq.local.open(sys.argv[1], engine=sys.argv[2], options=evenq.local.LocalOptions(flush=sys.argv[3], file_bytes=100_000))
say = threading.Lock()

def send():
    producer = queues.producer("orders")
    for number in range(1_000_000):
        message = producer.send(b"%d " % number + bytes(500))
        with say:
            print(producer.queue_id, message.offset, flush=True)

for _ in range(4):
    threading.Thread(target=send).start()
"""


@pytest.mark.parametrize("flush", ["async", "sync"])
@pytest.mark.parametrize("engine", ["embedded", "local"])
@pytest.mark.slow
def test_nothing_that_send_returned_is_lost_by_kill_9(engine, flush, tmp_path):
    result = dict.fromkeys(range(4), -1)
    for _ in range(2):
        victim = subprocess.Popen(
            [sys.executable, "-c", VICTIM, str(tmp_path / "data"), engine, flush], stdout=subprocess.PIPE, text=True
        )
        assert victim.stdout is not None
        for count, line in enumerate(victim.stdout):
            queue_id, offset = map(int, line.split())
            result[queue_id] = max(result[queue_id], offset)
            if count == 600:
                victim.kill()
                break
        rest, _ = victim.communicate()
        for queue_id, offset in re.findall(r"^(\d+) (\d+)$", rest, re.MULTILINE):
            result[int(queue_id)] = max(result[int(queue_id)], int(offset))
        with evenq.local.open(tmp_path / "data", engine=engine) as queues:
            for queue_id, newest in result.items():
                offset = 0
                while messages := queues.engine.get_message("orders", queue_id, offset).messages:
                    assert [message.offset for message in messages] == list(range(offset, offset + len(messages)))
                    offset += len(messages)
                assert offset > newest
