"""The official Python SDK sends to a broker with the compiled accelerator, and to one without it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from evenq_proofs.native_module import native_module
from evenq_proofs.peer import Peer

from evenq.runtime.accelerator import VARIABLE
from evenq.testing import LocalCluster

SETTINGS = {"AUTO_CREATE_TOPICS": "true", "AUTO_CREATE_GROUPS": "true", "DEFAULT_START_FROM": "FIRST"}
PEER = Path(__file__).with_name("python_sdk_peer.py")


@pytest.mark.parametrize("choice", ["on", "off"])
def test_messages_of_the_official_sdk_arrive_with_and_without_the_accelerator(
    choice: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep: Callable[[Peer], None]
) -> None:
    if choice == "on":
        native_module()
    monkeypatch.setenv(VARIABLE, choice)
    with LocalCluster(broker_settings=SETTINGS) as cluster:

        def run(*arguments: object) -> Peer:
            log_path = tmp_path / f"peer-{arguments[0]}.log"
            peer = Peer([sys.executable, str(PEER), *map(str, arguments)], log_path=log_path)
            keep(peer)
            peer.wait_done()
            return peer

        receipts = [said["id"] for said in run("produce", cluster.endpoint, "sent", 0, 60).said if "id" in said]
        assert len(set(receipts)) == 60
        consumer = run("simple", cluster.endpoint, "sent", "readers", "even", 30)
        assert sorted(consumer.numbers()) == list(range(0, 60, 2))
        received = [said for said in consumer.said if "got" in said]
        assert {said["tag"] for said in received} == {"even"}
        assert all((said["body"], said["keys"]) == (f"body-{said['got']}", [f"key-{said['got']}"]) for said in received)
