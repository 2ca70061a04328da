"""What `evenq up` checks before it starts anything."""

import shlex
import socket
from contextlib import ExitStack
from pathlib import Path

import pytest

from evenq.cli.parser import make_parser
from evenq.cli.up.commands import lock_folder, run, settings_without_effect
from evenq.cli.up.plan import StartTopic, parse_topic, plan_of
from evenq.cli.up.ready import announce
from evenq.cli.up.tls import how_to
from evenq.errors import PortInUse, SettingsError, StoreError, StoreLocked


def plan(*words):
    with ExitStack() as stack:
        return plan_of(make_parser().parse_args(["up", *words]), stack)


def test_settings_of_servers_that_it_does_not_read_are_named(monkeypatch, capsys):
    names = [f"EVENQ_BROKER_AUTH__{number}" for number in range(4)] + ["EVENQ_NAMESERVER_PORT"]
    for name in names:
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("EVENQ_BROKER_SERVICE_HOST", "10.0.0.1")  # Kubernetes
    with pytest.raises(SettingsError):
        run(make_parser().parse_args(["up", "--sync"]))
    error = " ".join(capsys.readouterr().err.split())
    assert f"does not read {', '.join(names[:3])} and 2 more: it takes options only" in error
    assert settings_without_effect({"EVENQ_ENDPOINT": "x", "EVENQ_BROKERS": "x"}) == []


def test_two_starts_in_the_same_moment_choose_different_metrics_ports(monkeypatch):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        free = probe.getsockname()[1]
    monkeypatch.setattr("evenq.cli.up.plan.METRICS_PORT", free)
    options = make_parser().parse_args(["up", "--port", "0"])
    with ExitStack() as one, ExitStack() as other:
        assert [plan_of(options, stack).metrics_port for stack in (one, other)] == [free, 0]
    assert plan("--port", "0").metrics_port == free


def test_a_start_without_a_folder_for_temporary_files_looks_at_the_port(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "none"))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        monkeypatch.setattr("evenq.cli.up.plan.METRICS_PORT", taken.getsockname()[1])
        assert plan("--port", "0").metrics_port == 0


def test_brokers_take_ports_one_after_another():
    assert plan("--port", "29081", "--brokers", "3").ports == (29081, 29082, 29083)


def test_port_0_leaves_all_ports_to_the_system():
    assert plan("--port", "0", "--brokers", "2").ports == (0, 0)


def test_a_port_in_use_is_told_with_one_that_is_free():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(PortInUse, match=rf"port {port} on 127.0.0.1 is in use.*evenq up --port \d+"):
            plan("--port", str(port))


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--brokers", "27"], "--brokers 27 is above 26"),
        (["--sync"], "--sync needs --data"),
        (["--port", "65535", "--brokers", "2"], "fewer than 2 ports"),
        (["--topic", "orders:x"], "is not NAME"),
        (["--topic", "orders:1:ODD"], "is not NAME"),
        (["--topic", "orders:4097"], "--topic orders:4097 has more than 4096 queues"),
        (["--topic", "orders:" + "9" * 5_000], "has more than 4096 queues"),
        (["--topic", "caf\udce9"], "--topic: the topic name"),
    ],
)
def test_what_cannot_be_is_refused(words, text):
    with pytest.raises(SettingsError, match=text):
        plan("--port", "0", *words) if "--port" not in words else plan(*words)


def test_a_topic_may_name_queues_and_type():
    assert parse_topic("a") == StartTopic(name="a")
    assert parse_topic("a:8") == StartTopic(name="a", queues=8)
    assert parse_topic("a:8:fifo") == StartTopic(name="a", queues=8, message_type="FIFO")


def test_two_on_one_data_folder_are_refused_with_folder_and_process(tmp_path):
    with ExitStack() as first, ExitStack() as second:
        lock_folder(tmp_path / "q", first)
        with pytest.raises(StoreLocked, match=rf"{tmp_path}/q is in use by another .evenq up., process \d+"):
            lock_folder(tmp_path / "q", second)
    with ExitStack() as third:
        lock_folder(tmp_path / "q", third)


def test_a_data_folder_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "q").write_text("x")
    with ExitStack() as stack, pytest.raises(StoreError, match="cannot be used"):
        lock_folder(tmp_path / "q", stack)


def test_exactly_one_line_begins_with_ready_and_names_the_access_point(capsys):
    announce(plan("--port", "0"), "127.0.0.1:29081", metrics_port=5557, brokers=2, where="one process")
    lines = capsys.readouterr().out.splitlines()
    ready = [line for line in lines if line.startswith("ready")]
    assert ready == ["ready 127.0.0.1:29081 (2 brokers, one process, data in memory)"]
    assert any("evenq produce orders --body hello --endpoint 127.0.0.1:29081" in line for line in lines)
    assert len({len(line) for line in lines[1:]}) == 1


def test_the_default_endpoint_is_not_repeated(capsys):
    announce(plan("--port", "0"), "127.0.0.1:8081", metrics_port=5557, brokers=1, where="one process")
    assert "--endpoint" not in capsys.readouterr().out


def test_the_lines_for_a_shell_can_be_copied_whatever_the_folder_is_called():
    lines = how_to(Path("/of mine/ca.pem"), "evenqs://127.0.0.1:8081")
    (export,) = [line for line in lines if "export" in line]
    assert "EVENQ_TLS_CA=/of mine/ca.pem" in shlex.split(export)
    assert sum("='/of mine/ca.pem'" in line for line in lines) == 3


def test_the_lines_for_a_shell_can_be_copied_with_several_access_points():
    endpoint = "evenqs://127.0.0.1:8081;evenqs://127.0.0.1:8082"
    lines = how_to(Path("/ca.pem"), endpoint)
    (export,) = [line for line in lines if "export" in line]
    assert f"EVENQ_ENDPOINT={endpoint}" in shlex.split(export)
    assert any("endpoint 127.0.0.1:8081;127.0.0.1:8082," in line for line in lines), "the official SDKs know no scheme"
