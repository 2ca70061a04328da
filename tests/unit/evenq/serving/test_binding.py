"""Ports that close lose no connection that was accepted before."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

from evenq.serving.binding import bind, close_listening


def test_a_connection_that_is_accepted_while_its_port_closes_is_made() -> None:
    """asyncio accepts it in one turn of the loop and makes it in the next one; its client must not wait in between."""

    class Closes(asyncio.Protocol):
        def connection_made(self, transport: Any) -> None:
            transport.abort()

    async def story() -> bytes:
        loop = asyncio.get_running_loop()
        (bound,) = bind("127.0.0.1", 0)
        server = await loop.create_server(Closes, sock=bound)
        port = bound.getsockname()[1]
        closing: list[asyncio.Task[None]] = []
        create_task = loop.create_task

        def closes_first(coroutine: Any, **named: Any) -> Any:
            if not closing:  # asyncio's task for the accepted connection, which runs behind this one
                closing.append(create_task(close_listening([server])))
            return create_task(coroutine, **named)

        loop.create_task = closes_first  # type: ignore[method-assign]
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.setblocking(False)
            async with asyncio.timeout(10):
                end = await loop.sock_recv(client, 1)
        await closing[0]
        return end

    assert asyncio.run(story()) == b"", "the protocol ended it"


async def test_a_port_is_free_when_it_is_closed() -> None:
    loop = asyncio.get_running_loop()
    (bound,) = bind("127.0.0.1", 0)
    port = bound.getsockname()[1]
    await close_listening([await loop.create_server(asyncio.Protocol, sock=bound)])
    (again,) = bind("127.0.0.1", port)
    again.close()
