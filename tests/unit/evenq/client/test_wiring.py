"""Importing is light, ids are unique."""

import asyncio
import random
import subprocess
import sys
from typing import Any

import pytest
from evenq_proofs.loop_net import LoopNet

import evenq
import evenq.aio
from evenq.client.loops.admin.resizing import scale_in_checked
from evenq.client.options import PushOptions
from evenq.client.topic_source import TopicSource
from evenq.client.wiring import ClientContext, new_client_id, placed
from evenq.errors import BadRequest
from evenq.runtime.clock import FakeClock


def test_importing_evenq_and_naming_its_classes_loads_neither_grpc_nor_protobuf() -> None:
    code = (
        "import sys, evenq, evenq.aio; evenq.Producer, evenq.PushConsumer, evenq.SimpleConsumer, evenq.Admin;"
        "print([name for name in ('grpc', 'google.protobuf') if name in sys.modules])"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert output.stdout.strip() == "[]"


def test_client_ids_differ_within_one_process() -> None:
    clock = FakeClock()
    first, second = new_client_id(clock), new_client_id(clock)
    assert first != second
    assert first.count("@") == 3


def test_the_place_of_a_member_comes_from_the_environment_where_its_options_do_not_say(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("EVENQ_ZONE", "b")
    monkeypatch.setenv("EVENQ_INSTANCE", "rides-3")
    assert placed(PushOptions(zone="a")) == PushOptions(zone="a", instance="rides-3")
    monkeypatch.delenv("EVENQ_ZONE")
    assert placed(PushOptions()) == PushOptions(instance="rides-3")


class _Net(LoopNet):
    closed = False

    async def close(self) -> None:
        self.closed = True


def test_a_client_closes_the_net_it_made_and_leaves_one_that_was_handed_in() -> None:
    clock, rng = FakeClock(), random.Random(1)
    net = _Net(clock)
    asyncio.run(ClientContext(clock=clock, rng=rng, net=net).let_go(net))
    assert not net.closed
    asyncio.run(ClientContext(clock=clock, rng=rng).let_go(net))
    assert net.closed


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"endpoint": 8081}, "endpoint is 8081; give a text"),
        ({"tls": "ca.pem"}, r"tls is 'ca.pem'; give True, or evenq.Tls\(ca='ca.pem'\)"),
        ({"credentials": ("shop", "hush")}, "credentials is a tuple; give evenq.Credentials"),
    ],
)
@pytest.mark.parametrize("face", [evenq.Producer, evenq.Admin, evenq.aio.Admin])
def test_what_is_something_else_is_refused_with_what_to_give(face: Any, given: dict[str, Any], words: str) -> None:
    with pytest.raises(BadRequest, match=words) as refused:
        face(**given)
    assert "hush" not in str(refused.value)


def test_brokers_given_as_a_text_are_refused() -> None:
    calls: Any = None
    with pytest.raises(BadRequest, match="give a list of broker names"):
        asyncio.run(scale_in_checked(calls, "broker-a", allow_unread=False))


async def test_a_source_of_tables_reads_nothing_ahead_and_other_clients_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise gRPC buffers up to 80 MB of a scan, which the bound of an export does not contain."""
    probes = []

    def made(*, tls: Any, options: Any) -> Any:
        probes.append(dict(options).get("grpc.http2.bdp_probe"))
        return _Net(FakeClock())

    monkeypatch.setattr("evenq.wire.net.GrpcNet", made)
    async with TopicSource(endpoint="127.0.0.1:1"):
        ClientContext.real().open_net()
    assert probes == [0, None]
