"""What a user writes after the guides passes `mypy --strict`."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import asyncio
from collections.abc import Sequence

import evenq
import evenq.aio


def listen(messages: list[evenq.ReceivedMessage]) -> None:
    messages.sort(key=lambda message: message.queue_offset)


def listen_to_any(messages: Sequence[evenq.ReceivedMessage]) -> bool:
    return bool(messages)


async def listen_later(messages: list[evenq.ReceivedMessage]) -> None:
    await asyncio.sleep(0)


def moved(gained: list[evenq.MessageQueue], lost: list[evenq.MessageQueue]) -> None:
    print(gained, lost)


message = evenq.Message(topic="orders", body=b"3 apples", keys=["42"])
other = evenq.Message(topic="orders", body=b"3 apples", keys=("42",), properties={"region": "eu"})
subscriptions = {"orders": "*"}
first = evenq.PushConsumer(group="a", listener=listen, subscriptions=subscriptions, on_rebalance=moved)
second = evenq.PushConsumer(group="a", listener=listen_to_any, subscriptions=subscriptions)
third = evenq.aio.PushConsumer(group="a", listener=listen_later, subscriptions=subscriptions)
lite = evenq.LitePushConsumer(group="a", topic="chats", lite_topics=["ann"], listener=listen)
"""


@pytest.mark.slow  # mypy reads the whole SDK
def test_a_small_program_passes_mypy_strict(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), str(program)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
