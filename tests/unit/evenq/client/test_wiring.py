"""Importing is light, ids are unique."""

import subprocess
import sys

from evenq.client.wiring import new_client_id
from evenq.runtime.clock import FakeClock


def test_importing_evenq_and_naming_its_classes_loads_neither_grpc_nor_protobuf() -> None:
    code = (
        "import sys, evenq, evenq.aio; evenq.Producer, evenq.PushConsumer, evenq.SimpleConsumer, evenq.Admin;"
        "print([name for name in ('grpc', 'google.protobuf') if name in sys.modules])"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "[]"


def test_client_ids_differ_within_one_process() -> None:
    clock = FakeClock()
    first, second = new_client_id(clock), new_client_id(clock)
    assert first != second
    assert first.count("@") == 3
