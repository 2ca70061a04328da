"""Dead letters as an operator meets them: a consumer that fails, `evenq dlq list`, `show`, `replay`, and what comes
back.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from evenq_proofs.nets import open_net
from evenq_proofs.v2_requests import receive_messages, receive_request, send_request

from evenq.testing import LocalCluster
from evenq.wire.convert import set_duration_ms
from evenq.wire.net import GrpcNet
from evenq.wire.status import check
from evenq.wire.stubs.apache.rocketmq.v2 import service_pb2
from evenq.wire.stubs.evenq.v1 import admin_pb2, groups_pb2

V2 = "/apache.rocketmq.v2.MessagingService/"


@asynccontextmanager
async def running() -> AsyncIterator[tuple[LocalCluster, GrpcNet]]:
    async with LocalCluster(brokers=2, rebalancer=False) as cluster, open_net() as net:
        yield cluster, net


async def call(net: GrpcNet, address: str, method: str, request: Any, response: Any) -> Any:
    headers = {"x-mq-client-id": "client", "x-mq-language": "JAVA"}
    raw = await net.unary(address, method, request.SerializeToString(), timeout_ms=60_000, metadata=headers)
    answer = response.FromString(raw)
    check(answer.status)
    return answer


async def receive(net: GrpcNet, address: str, *, poll_ms: int, batch: int = 16) -> list[Any]:
    request = receive_request("billing", "orders", queue=-1, poll_ms=poll_ms, invisible_ms=30_000, batch_size=batch)
    headers = {"x-mq-client-id": "client", "x-mq-language": "JAVA"}
    return await receive_messages(net, address, request, timeout_ms=poll_ms + 3_000, metadata=headers)


async def evenq(endpoint: str, *words: str, code: int = 0) -> Any:
    program = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "evenq.cli", "dlq", *words, "--endpoint", endpoint, "--json",
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, err = await program.communicate()
    if code:
        assert (program.returncode, len(err.splitlines())) == (code, 1), err.decode()
        return err.decode()
    assert program.returncode == 0, err.decode()
    return json.loads(out)


@pytest.mark.slow
async def test_41_what_always_fails_is_a_dead_letter_and_comes_back_by_a_replay() -> None:
    """Checklist 41, 40: delivered `max_attempts` times, then in the dead-letter topic with its origin; RD-19."""
    async with running() as (cluster, net):
        first, second = (broker.address for broker in cluster.brokers)
        retry = groups_pb2.RetryPolicy(kind="CUSTOMIZED", delays_ms=[100])
        group = admin_pb2.CreateGroupRequest(group="billing", max_attempts=2, start_from="FIRST", retry=retry)
        await call(net, first, "/evenq.v1.Admin/CreateGroup", group, admin_pb2.CreateGroupResponse)
        for address in (first, second):
            send = send_request("orders", f"from-{address}", b"poison")
            await call(net, address, V2 + "SendMessage", send, service_pb2.SendMessageResponse)
        attempts = []
        for _ in range(4):
            [got] = await receive(net, first, poll_ms=5_000, batch=1)
            attempts.append(got.system_properties.delivery_attempt)
            nack = service_pb2.ChangeInvisibleDurationRequest()
            nack.group.name, nack.topic.name = "billing", "orders"
            nack.receipt_handle = got.system_properties.receipt_handle
            set_duration_ms(nack.invisible_duration, len(attempts) % 2)  # 0 and 1 ms
            response = service_pb2.ChangeInvisibleDurationResponse
            await call(net, first, V2 + "ChangeInvisibleDuration", nack, response)
        assert sorted(attempts) == [1, 1, 2, 2]
        async with asyncio.timeout(60):
            while True:
                assert await receive(net, first, poll_ms=200) == []
                listed = await evenq(second, "list", "billing")
                if len(listed["letters"]) == 2:
                    break
        assert {letter["reason"] for letter in listed["letters"]} == {"attempts"}
        assert {letter["topic"] for letter in listed["letters"]} == {"orders"}
        shown = await evenq(first, "show", "billing", f"from-{second}")
        assert (shown["attempts"], shown["body"], shown["replayed"]) == (2, "poison", False)
        plan = await evenq(first, "replay", "billing", "--dry-run")
        assert (plan["would_replay"], {one["topic"] for one in plan["topics"]}) == (2, {"orders"})
        assert len((await evenq(second, "list", "billing", "--waiting"))["letters"]) == 2, "nothing was sent"
        assert "--yes" in await evenq(first, "replay", "billing", code=1)
        for words in (("list",), ("show",), ("replay",), ("replay", "--yes")):
            assert "'biling'" in await evenq(second, words[0], "biling", *words[1:], code=3)
        done = await evenq(first, "replay", "billing", "--rate", "50/s", "--yes")
        assert (done["replayed"], done["failed"]) == (2, 0)
        again: list[Any] = []
        while len(again) < 2:
            again += await receive(net, first, poll_ms=5_000)
        assert {one.system_properties.message_id for one in again} == {f"from-{first}", f"from-{second}"}
        assert {one.system_properties.delivery_attempt for one in again} == {1}
        assert (await evenq(second, "replay", "billing", "--yes"))["replayed"] == 0
