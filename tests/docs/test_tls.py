"""docs/guides/tls.md: the cluster it starts, the Python and the commands it shows, and the settings of its broker."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys

from evenq_broker.settings import BrokerSettings

from evenq.serving.program.settings import load
from evenq.testing.free_ports import FreePorts

PAGE = "docs/guides/tls.md"


def test_the_page_goes_as_it_tells(blocks, tmp_path):
    begin, ask, _ = blocks(PAGE, "")
    (program,) = blocks(PAGE, "python")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("EVENQ_")}
    evenq = [sys.executable, "-m", "evenq.cli"]

    def ran(command):
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False
        )

    ports = FreePorts()
    port = ports.take()
    (up,) = [shlex.split(line) for line in begin.commands() if line.startswith("evenq up")]
    command = [*evenq, *up[1:], "--port", str(port), "--metrics-port", "0", "--topic", "orders"]
    running = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        assert running.stdout.readline().startswith("ready evenqs://")
        done = ran([sys.executable, "-c", program.at(f"127.0.0.1:{port}")])
        assert done.returncode == 0, done.stderr
        assert "orders" in done.stdout
        (line,) = ask.commands()
        done = ran([*evenq, *shlex.split(line.replace("127.0.0.1:8081", f"127.0.0.1:{port}"))[1:]])
        assert "orders" in done.stdout, done.stderr
    finally:
        running.terminate()
        running.wait(60)
        running.stdout.close()
        ports.close()


def test_the_brokers_line_is_one(blocks):
    line = blocks(PAGE, "")[2].text
    settings = load(BrokerSettings, "broker", shlex.split(line)[1:], {})
    assert settings.port == -1
    assert settings.tls.port == 8081
    assert settings.tls.peers
