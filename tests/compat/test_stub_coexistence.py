"""Our stubs and the official Python client's, which register the same proto files, in one process and in either order.

Each order runs in a process of its own, because what a process has imported cannot be taken back.
"""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("rocketmq", reason="needs rocketmq-python-client")
pytestmark = pytest.mark.compat

SOURCES = Path(__file__).resolve().parents[2] / "src"

OURS = """
from evenq.wire.convert import ms_of, set_ms
from evenq.wire.stubs.apache.rocketmq.v2 import admin_pb2, definition_pb2 as ours, service_pb2
"""
THEIRS = """
import rocketmq
from rocketmq.grpc_protocol import admin_pb2 as their_admin, definition_pb2 as theirs, service_pb2 as their_service
"""
EXCHANGE = """
import pickle

message = ours.Message(topic=ours.Resource(name="orders"), user_properties={"a": "b"}, body=b"x")
message.system_properties.keys.append("k")
message.system_properties.message_type = ours.FIFO
set_ms(message.system_properties.born_timestamp, 1_700_000_000_123)

there = theirs.Message.FromString(message.SerializeToString())
assert type(there) is not type(message)
assert there.system_properties.born_timestamp.ToMilliseconds() == 1_700_000_000_123
assert there.system_properties.message_type == theirs.FIFO
assert dict(there.user_properties) == {"a": "b"}

there.system_properties.store_timestamp.FromMilliseconds(1_700_000_000_456)
back = ours.Message.FromString(there.SerializeToString())
assert ms_of(back.system_properties.store_timestamp) == 1_700_000_000_456
back.system_properties.ClearField("store_timestamp")
assert back == message
assert type(pickle.loads(pickle.dumps(back))) is ours.Message

request = service_pb2.SendMessageRequest(messages=[message])
assert their_service.SendMessageRequest.FromString(request.SerializeToString()).messages[0].body == b"x"
"""
SHAPE = """
# Their copy is older than ours, never different: what they have, we have too.
def facts(message):
    for field in message.fields:
        kind = field.message_type or field.enum_type
        oneof = field.containing_oneof
        yield (field.full_name, field.number, field.type, field.is_repeated, field.has_presence,
               kind and kind.full_name, oneof and oneof.name)
    for nested in message.nested_types:
        yield from facts(nested)
    for enum in message.enum_types:
        yield from ((enum.full_name, value.name, value.number) for value in enum.values)

def shape(file):
    for message in file.message_types_by_name.values():
        yield from facts(message)
    for enum in file.enum_types_by_name.values():
        yield from ((enum.full_name, value.name, value.number) for value in enum.values)
    for service in file.services_by_name.values():
        for rpc in service.methods:
            yield (rpc.full_name, rpc.input_type.full_name, rpc.output_type.full_name, rpc.client_streaming,
                   rpc.server_streaming)

for mine, other in ((ours, theirs), (service_pb2, their_service), (admin_pb2, their_admin)):
    missing = set(shape(other.DESCRIPTOR)) - set(shape(mine.DESCRIPTOR))
    assert not missing, sorted(missing, key=str)
"""


def run(*parts: str) -> None:
    # Warnings of the other client are its own affair.
    done = subprocess.run(
        [sys.executable, "-c", "".join(parts)],
        env={"PYTHONPATH": str(SOURCES)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("order", [(OURS, THEIRS), (THEIRS, OURS)], ids=["ours first", "theirs first"])
def test_messages_cross_between_both(order: tuple[str, str]) -> None:
    run(*order, EXCHANGE)


def test_their_shape_is_within_ours() -> None:
    run(OURS, THEIRS, SHAPE)
