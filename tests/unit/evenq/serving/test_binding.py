"""Sockets of servers: ports that close lose no accepted connection, and paths of Unix sockets."""

from __future__ import annotations

import asyncio
import fcntl
import os
import socket
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from evenq.errors import PortInUse, SettingsError
from evenq.serving import binding
from evenq.serving.binding import UNIX, bind, close_listening


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


def test_a_socket_file_of_a_killed_process_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "broker"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
        left.listen()
    [bound] = bind(f"{UNIX}{path}", 0)
    with bound, socket.socket(socket.AF_UNIX) as client:
        bound.listen()
        client.connect(str(path))


def test_a_socket_that_another_start_has_just_bound_stays(tmp_path: Path) -> None:
    [first] = bind(f"{UNIX}{tmp_path}/broker", 0)
    with first, pytest.raises(PortInUse, match="another process uses the socket"):
        bind(f"{UNIX}{tmp_path}/broker", 0)


def test_two_starts_that_find_a_left_socket_do_not_remove_each_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "broker"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    passed, is_left, sleep = threading.Event(), binding._is_left, time.sleep

    def slow_look(path: str) -> bool:
        found = is_left(path)
        if threading.current_thread() is slow:
            other.start()
            assert passed.wait(60), "the other start has ended, or waits"
        return found

    def waits(seconds: float) -> None:
        passed.set()
        sleep(seconds)

    bound: list[socket.socket] = []

    def start() -> None:
        try:
            bound.extend(bind(f"{UNIX}{path}", 0))
        except PortInUse:
            pass
        finally:
            if threading.current_thread() is other:
                passed.set()

    monkeypatch.setattr(binding, "_is_left", slow_look)
    monkeypatch.setattr(binding, "time", SimpleNamespace(sleep=waits))
    slow, other = threading.Thread(target=start), threading.Thread(target=start)
    slow.start()
    slow.join()
    other.join()
    with ExitStack() as stack:
        assert len([stack.enter_context(one) for one in bound]) == 1
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))


def test_a_folder_that_another_program_keeps_locked_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binding, "FOLDER_WAIT_S", 0)
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_SH)
        [bound] = bind(f"{UNIX}{tmp_path}/broker", 0)
        bound.close()
    finally:
        os.close(folder)


@pytest.mark.parametrize("busy", [False, True])
def test_a_socket_of_a_live_process_stays(tmp_path: Path, *, busy: bool) -> None:
    """Also one whose queue of connections is full: it accepts none, and is not left."""
    path = str(tmp_path / "broker")
    with ExitStack() as stack:
        live = stack.enter_context(socket.socket(socket.AF_UNIX))
        live.bind(path)
        live.listen(0)
        for _ in range(4 if busy else 0):
            waiting = stack.enter_context(socket.socket(socket.AF_UNIX))
            waiting.setblocking(False)
            waiting.connect_ex(path)
        with pytest.raises(PortInUse, match=r"another process uses the socket .*stop it, or give another path"):
            bind(f"{UNIX}{path}", 0)
        assert Path(path).is_socket()


def test_a_socket_of_another_kind_stays(tmp_path: Path) -> None:
    path = str(tmp_path / "log")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        other.bind(path)
        with pytest.raises(PortInUse):
            bind(f"{UNIX}{path}", 0)


@pytest.mark.parametrize("name", ["x" * 108, "\u00e9" * 54, ""])
def test_a_path_that_the_system_cannot_hold_is_named_with_its_limit(name: str) -> None:
    size = len(name.encode())
    with pytest.raises(SettingsError, match=rf"has {size} bytes, the range is 1 to 107 .*give a shorter path"):
        bind(f"{UNIX}{name}", 0)


def test_a_file_with_the_name_of_the_socket_is_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "notes"
    path.write_text("mine")
    with pytest.raises(SettingsError, match="a file that is not a socket has this name; give another path"):
        bind(f"{UNIX}{path}", 0)
    assert path.read_text() == "mine"
    with pytest.raises(SettingsError, match="No such file or directory; give another path"):
        bind(f"{UNIX}{tmp_path}/none/broker", 0)
