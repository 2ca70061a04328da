"""One server process, here a small stand-in that serves /readyz."""

import fcntl
import signal
import textwrap

import pytest

from evenq.errors import ConnectionFailed, RequestTimeout
from evenq.testing import node as node_module
from evenq.testing.free_ports import FreePorts
from evenq.testing.node import Node

STAND_IN = textwrap.dedent("""
    import fcntl, http.server, os, signal, sys, threading, time
    print("hello", flush=True)
    if "STUBBORN" in os.environ:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    if "BROKEN" in os.environ:
        sys.exit("no such setting")
    def lock_and_unlock():
        while True:
            with open(os.environ["LOCKS"], "a") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                time.sleep(0.002)
            time.sleep(0.001)
    if "LOCKS" in os.environ:
        open(os.environ["LOCKS"], "a").close()
        threading.Thread(target=lock_and_unlock, daemon=True).start()
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(503 if "NEVER" in os.environ else 200)
            self.end_headers()
        def log_message(self, *_):
            pass
    http.server.HTTPServer(("127.0.0.1", int(os.environ["EVENQ_X_PORT"])), Handler).serve_forever()
""")


@pytest.fixture
def make(tmp_path):
    (tmp_path / "stand_in.py").write_text(STAND_IN)
    nodes, ports = [], FreePorts()

    def node(**extra):
        port = ports.take()
        environment = {"PYTHONPATH": str(tmp_path), "EVENQ_X_PORT": str(port), **extra}
        nodes.append(
            Node(
                "stand_in",
                name="x",
                port=port,
                metrics_port=port,
                log_path=tmp_path / "x.log",
                environment=environment,
            )
        )
        return nodes[-1]

    yield node
    for made in nodes:
        made.kill()
    ports.close()


def test_a_node_starts_and_stops_cleanly(make):
    node = make()
    node.start()
    node.wait_ready()
    assert node.alive
    assert node.stop() == 0
    assert not node.alive
    assert node.pid is None
    assert node.exit_code == 0


def test_a_killed_node_restarts_at_the_same_port_and_keeps_its_log(make):
    node = make()
    node.start()
    node.wait_ready()
    first = node.pid
    node.kill()
    assert node.exit_code == -signal.SIGKILL
    node.restart()
    assert node.pid != first
    assert node.log_text().count("hello") == 2


def test_a_paused_node_goes_on_after_resume(make):
    node = make()
    node.start()
    node.wait_ready()
    node.pause()
    assert node.alive
    node.resume()
    node.wait_ready()


def test_a_node_is_not_paused_while_it_has_a_lock(make, tmp_path, monkeypatch):
    """It takes it and gives it back all the time; who is paused with it stops all who wait for it."""
    lock = tmp_path / "shared.lock"
    node = make(LOCKS=str(lock))
    node.start()
    node.wait_ready()
    for _ in range(20):
        node.pause(without=[lock, tmp_path / "none.lock"])
        with lock.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        node.resume()
    monkeypatch.setattr(node_module, "_PAUSES_MAX", 20)
    with lock.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(RequestTimeout, match=r"is not paused: .*shared.lock stay locked"):
            node.pause(without=[lock])


def test_a_node_that_ends_early_shows_its_log(make):
    node = make(BROKEN="1")
    node.start()
    with pytest.raises(ConnectionFailed, match=r"exit code 1(.|\n)*no such setting"):
        node.wait_ready()


def test_a_node_that_is_never_ready_times_out(make):
    node = make(NEVER="1")
    node.start()
    with pytest.raises(RequestTimeout, match="not ready after 300 ms"):
        node.wait_ready(timeout_ms=300)


def test_a_node_that_ignores_its_signal_is_killed_and_told(make):
    node = make(STUBBORN="1")
    node.start()
    node.wait_ready()
    with pytest.raises(RequestTimeout, match="has not ended 300 ms after"):
        node.stop(timeout_ms=300)
    assert not node.alive
