"""One server process, here a small stand-in that serves /readyz."""

import signal
import textwrap

import pytest

from evenq.errors import ConnectionFailed, RequestTimeout
from evenq.testing.free_ports import FreePorts
from evenq.testing.node import Node

STAND_IN = textwrap.dedent("""
    import http.server, os, signal, sys
    print("hello", flush=True)
    if "STUBBORN" in os.environ:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    if "BROKEN" in os.environ:
        sys.exit("no such setting")
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
