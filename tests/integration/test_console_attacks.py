"""Strangers at the port of a console: idle connections, wrong keys and requests that do not end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest
from evenq_proofs.waiting import until_async

from evenq.console.server import ConsoleServer
from evenq.console.settings import ConsoleSettings
from evenq.runtime.clock import SystemClock
from evenq.testing import LocalCluster

USERS = """
[users.servers]
secret = "secret-of-servers"
internal = true
[users.root]
secret = "secret-of-root"
admin = true
"""
OWN = {"sec-fetch-site": "same-origin"}


pytestmark = pytest.mark.cluster(rebalancer=False, users=USERS, metrics_port=-1)


@pytest.fixture
async def console(cluster: LocalCluster) -> AsyncIterator[ConsoleServer]:
    async with ConsoleServer(ConsoleSettings(endpoint=cluster.endpoint, port=0), SystemClock()) as server:
        yield server


def client_of(console: ConsoleServer) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=console.url, timeout=60)


async def sign_in(client: httpx.AsyncClient, secret: str, user: str = "root") -> httpx.Response:
    form = (await client.get("login")).text
    token = form.partition('name="token" value="')[2].partition('"')[0]
    keys = {"token": token, "access_key": user, "secret_key": secret}
    return await client.post("login", data=keys, headers=OWN)


async def test_600_idle_connections_do_not_keep_a_user_out(console: ConsoleServer) -> None:
    idle = [await asyncio.open_connection("127.0.0.1", console.port) for _ in range(600)]
    for number, (_, writer) in enumerate(idle):
        writer.write(b"" if number % 2 else b"GET /topics HTTP/1.1\r\nHost: localhost\r\nX-Endless: ")
    async with client_of(console) as client:
        assert (await client.get("healthz")).status_code == 200
        assert (await sign_in(client, "secret-of-root")).status_code == 303
        assert (await client.get("topics")).status_code == 200
    for _, writer in idle:
        writer.close()


async def test_wrong_keys_of_many_clients_do_not_keep_a_user_out(console: ConsoleServer) -> None:
    async with client_of(console) as stranger, client_of(console) as client:
        users = [f"guess{number}" for number in range(40)] + ["guess"] * 8
        guesses = [asyncio.ensure_future(sign_in(stranger, "wrong-secret", user)) for user in users]
        await until_async(lambda: any(one.done() for one in guesses))
        assert (await sign_in(client, "secret-of-root")).status_code == 303
        assert (await client.get("topics")).status_code == 200
        assert not all(one.done() for one in guesses), "those at one name take 4 s"
        assert {answer.status_code for answer in await asyncio.gather(*guesses)} <= {403, 429}


async def test_the_console_serves_while_a_stranger_sends_an_endless_head(console: ConsoleServer) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", console.port)
    writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n")
    async with client_of(console) as client:
        try:
            for number in range(10_000):
                writer.write(f"X-{number}: {'x' * 100}\r\n".encode())
                await writer.drain()
        except ConnectionError:
            pass
        assert (await client.get("healthz")).status_code == 200
    answer = b""
    try:
        answer = await reader.read(100)
    except ConnectionError:
        answer = b"closed"
    assert b" 400 " in answer or answer == b"closed"
    writer.close()
