"""`evenq up` as a stranger meets it: one process started from a shell, everything else typed beside it."""

import contextlib
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import time
import urllib.request
from pathlib import Path

import pytest
from evenq_proofs.command_line import EVENQ
from evenq_proofs.command_line import run_evenq as evenq
from evenq_proofs.waiting import until

from evenq.testing.free_ports import FreePorts

DEADLINE_S = 60


@pytest.fixture
def port():
    """The first of two: a second broker takes the next one."""
    with FreePorts() as ports:
        yield ports.take(2)


@pytest.fixture
def up():
    """Starts `evenq up` with options and waits for its ready line; ends what it started."""
    started = []

    def start(*options):
        if "--metrics-port" not in options:
            options = (*options, "--metrics-port", "0")  # others look for 5557 at the same time
        process = subprocess.Popen([*EVENQ, "up", *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        started.append(process)
        line = process.stdout.readline()
        assert line.startswith("ready "), line + process.stderr.read()
        process.first_line = line
        return process, line.split()[1]

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def ended(process, number=signal.SIGINT):
    process.send_signal(number)
    _, errors = process.communicate(timeout=DEADLINE_S)
    return process.returncode, errors


def consumed(endpoint, topic, group, count, *options, **variables):
    words = ("consume", topic, "--group", group, "--max", str(count), "--json", *options)
    text = evenq(*words, endpoint=endpoint, **variables)
    return [json.loads(line) for line in text.splitlines()]


def test_a_stranger_starts_it_makes_a_topic_sends_a_hundred_and_reads_them(up, port):
    process, endpoint = up("--port", str(port))
    assert endpoint == f"127.0.0.1:{port}"
    assert "Topic orders has 8 queues on 1 broker" in evenq(
        "topic", "create", "orders", "--queues", "8", endpoint=endpoint
    )
    (topic,) = json.loads(evenq("topic", "list", "--json", endpoint=endpoint))
    assert (topic["topic"], topic["queues"], topic["type"]) == ("orders", 8, "NORMAL")
    assert "orders" in evenq("topic", "list", endpoint=endpoint)

    sent = json.loads(evenq("produce", "orders", "--count", "100", "--tag", "new", "--json", endpoint=endpoint))
    assert (sent["sent"], sent["failed"]) == (100, 0)
    shown = json.loads(evenq("topic", "show", "orders", "--json", endpoint=endpoint))
    assert shown["messages"] == 100
    assert len(shown["queues"]) == 8

    received = consumed(endpoint, "orders", "billing", 100, "--from", "first")
    assert sorted(message["body"] for message in received) == sorted(f"message {number}" for number in range(1, 101))
    assert {message["tag"] for message in received} == {"new"}
    group = json.loads(evenq("group", "show", "billing", "--json", endpoint=endpoint))
    assert group["lag"] == 0
    assert "billing" in evenq("group", "list", endpoint=endpoint)

    cluster = json.loads(evenq("cluster", "show", "--json", endpoint=endpoint))
    assert cluster["rebalancer_answers"] is True
    assert [broker["broker"] for broker in cluster["brokers"]] == ["broker-a"]
    code, errors = ended(process)
    assert code == 0
    assert errors == ""


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("options", [("--metrics-port", "-1"), ("--tls",)])
def test_three_copies_start_with_one_command_and_go_on_when_their_leader_is_killed(up, port, tmp_path, options):
    folder = tmp_path / "data"
    process, endpoint = up("--replicas", "3", "--port", "0", "--data", str(folder), *options)
    if "--tls" in options:
        process.stdout.readline()
        export = next(line for line in process.stdout if "export" in line)
        variables = dict(word.split("=", 1) for word in shlex.split(export) if "=" in word)
        assert variables["EVENQ_ENDPOINT"] == endpoint
    else:
        variables = {}
    given = {"EVENQ_ENDPOINT": endpoint, **variables}
    assert json.loads(evenq("produce", "orders", "--count", "50", "--json", **given))["sent"] == 50
    shown = json.loads(evenq("cluster", "show", "--json", **given))
    (group,) = shown["broker_groups"]
    os.kill(copy_of(process.pid, group["leader"]), signal.SIGKILL)
    assert json.loads(evenq("produce", "orders", "--count", "50", "--json", **given))["sent"] == 50
    assert len(consumed(endpoint, "orders", "billing", 100, "--from", "first", "--idle", "10", **variables)) >= 100
    code, errors = ended(process)
    assert code == 0
    assert "was ended by SIGKILL; started again" in errors


def copy_of(parent, number):
    """Process id of one copy of a broker group that `evenq up` started."""
    mark = f"EVENQ_BROKER_REPLICATION__BROKER_ID={number}".encode()
    threads = Path(f"/proc/{parent}/task").iterdir()
    for child in " ".join(thread.joinpath("children").read_text() for thread in threads).split():
        if mark in Path(f"/proc/{child}/environ").read_bytes().split(b"\0"):
            return int(child)
    raise AssertionError(f"no copy {number}")


@pytest.mark.slow
def test_a_group_that_begins_at_the_end_reads_only_what_comes_later(up, port):
    _, endpoint = up("--port", str(port))
    evenq("produce", "jobs", "--body", "before", endpoint=endpoint)
    evenq("group", "create", "late", "--from", "last", endpoint=endpoint)
    assert consumed(endpoint, "jobs", "late", 1, "--idle", "1") == []
    evenq("produce", "jobs", stdin="after\n", endpoint=endpoint)
    assert [message["body"] for message in consumed(endpoint, "jobs", "late", 1, "--idle", "60")] == ["after"]


def test_the_first_message_makes_a_topic_of_its_type_and_produce_says_so_once(up, port):
    _, endpoint = up("--port", str(port), "--brokers", "2")
    output = evenq("produce", "jobs", "--body", "one", endpoint=endpoint)
    assert "created topic jobs (NORMAL, 16 queues)" in output
    assert "created" not in evenq("produce", "jobs", "--body", "two", endpoint=endpoint)
    output = json.loads(evenq("produce", "steps", "--body", "one", "--message-group", "a", "--json", endpoint=endpoint))
    assert output["created"] == "created topic steps (FIFO, 16 queues)"


@pytest.mark.slow
def test_without_automatic_topics_both_sides_are_told_what_to_do(up, port):
    _, endpoint = up("--port", str(port), "--no-auto-create-topics")
    for words in (("produce", "jobs", "--body", "one"), ("consume", "jobs", "--group", "g", "--max", "1")):
        output = evenq(*words, endpoint=endpoint, code=3)
        assert "no topic 'jobs'" in output
        assert "evenq topic create jobs" in output
        assert output.count("\n") == 1
    assert json.loads(evenq("topic", "list", "--json", endpoint=endpoint)) == []


def test_who_only_reads_makes_no_topic(up, port):
    _, endpoint = up("--port", str(port))
    output = evenq("consume", "jobs", "--group", "g", "--max", "1", endpoint=endpoint, code=3)
    assert "no topic 'jobs'" in output
    assert "its first message makes it" in output
    assert json.loads(evenq("topic", "list", "--json", endpoint=endpoint)) == []


@pytest.mark.slow
def test_it_stays_small(up, port):
    process, _ = up("--port", str(port))
    with open(f"/proc/{process.pid}/status") as status:
        rss_kib = int(re.search(r"VmRSS:\s+(\d+)", status.read()).group(1))
    assert rss_kib <= 150 * 1024


def test_a_port_in_use_is_one_line_that_names_a_free_one(port):
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", port))
        taken.listen()
        output = evenq("up", "--port", str(port), code=2)
    assert output.count("\n") == 1
    assert f"port {port} on 127.0.0.1 is in use" in output
    assert re.search(r"evenq up --port \d+", output)


@pytest.mark.slow
def test_data_are_there_again_after_a_restart(up, port, tmp_path):
    folder = str(tmp_path / "queue")
    process, endpoint = up("--port", str(port), "--data", folder, "--brokers", "2", "--topic", "orders:4")
    evenq("produce", "orders", "--count", "50", endpoint=endpoint)
    assert len(consumed(endpoint, "orders", "billing", 20, "--from", "first")) == 20
    assert ended(process, signal.SIGTERM)[0] == 0

    process, endpoint = up("--port", str(port), "--data", folder, "--brokers", "2")
    shown = json.loads(evenq("topic", "show", "orders", "--json", endpoint=endpoint))
    assert shown["messages"] == 50
    rest = consumed(endpoint, "orders", "billing", 30)
    assert len({message["body"] for message in rest}) == 30
    assert ended(process)[0] == 0


@pytest.mark.slow  # two starts; the store's own tests refuse a second owner
def test_a_second_one_on_the_same_data_folder_is_refused(up, port, tmp_path):
    folder = tmp_path / "queue"
    process, _ = up("--port", str(port), "--data", str(folder))
    output = evenq("up", "--port", "0", "--data", str(folder), code=1)
    assert output.count("\n") == 1
    assert str(folder) in output
    assert f"process {process.pid}" in output


@pytest.mark.slow  # four processes and many commands
def test_each_service_may_have_its_own_process(up, port, tmp_path):
    folder = tmp_path / "queue"
    process, endpoint = up("--port", str(port), "--data", str(folder), "--processes", "--topic", "orders:2")
    evenq("produce", "orders", "--count", "10", endpoint=endpoint)
    assert len(consumed(endpoint, "orders", "billing", 10, "--from", "first")) == 10
    assert {path.name for path in (folder / "logs").iterdir()} == {
        "nameserver-0.log",
        "rebalancer.log",
        "broker-a.log",
    }
    assert ended(process)[0] == 0


def runs(pid):
    """Whether it is a process that has not ended; one that was not waited for has no command line any more."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes() != b""
    except OSError:
        return False


def children(process):
    """Program -> pid of the processes that `evenq up` started: servers, and `table`."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it ended while we looked
            words = (folder / "cmdline").read_text().rstrip("\0").split("\0")
            name = "table" if words[3:5] == ["table", "follow"] else words[-1]
            mine = f"\nPPid:\t{process.pid}\n" in (folder / "status").read_text()
            if mine and (name == "table" or name.startswith("evenq_")):
                found[name] = int(folder.name)
    return found


def listening(pid):
    """Ports that a process listens on."""
    sockets = {os.readlink(one) for one in Path(f"/proc/{pid}/fd").iterdir()}
    rows = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
    return {int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in sockets}


def page(metrics_port, path="/healthz"):
    with urllib.request.urlopen(f"http://127.0.0.1:{metrics_port}{path}", timeout=60) as answer:
        return answer.read().decode()


@pytest.mark.slow  # four processes
def test_the_metrics_port_counts_with_processes_too(up, port):
    with FreePorts() as ports:
        metrics_port = ports.take()
        process, _ = up("--port", str(port), "--processes", "--metrics-port", str(metrics_port))
        assert 'node_type="broker"' in page(metrics_port, "/metrics")
        assert ended(process)[0] == 0
    process, endpoint = up("--port", str(port), "--processes", "--metrics-port", "-1")
    assert "curl" not in process.stdout.readline()
    for pid in children(process).values():
        assert len(listening(pid)) == 1, "gRPC and nothing else"
    assert "orders" in evenq("topic", "create", "orders", endpoint=endpoint)


def test_its_servers_end_with_it_when_it_is_killed(up, port):
    process, _ = up("--port", str(port), "--processes")
    pids = list(children(process).values())
    assert len(pids) == 3
    process.kill()
    deadline = time.monotonic() + DEADLINE_S
    while any(runs(pid) for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.slow  # servers are killed and started again
def test_a_killed_server_is_started_again_with_its_data_and_a_line_says_so(up, port, tmp_path):
    process, endpoint = up("--port", str(port), "--data", str(tmp_path / "queue"), "--processes", "--topic", "orders:2")
    evenq("produce", "orders", "--count", "10", endpoint=endpoint)
    for program in ("evenq_broker", "evenq_nameserver", "evenq_rebalancer"):
        before = children(process)
        os.kill(before[program], signal.SIGKILL)
        line = process.stderr.readline()
        assert "was ended by SIGKILL; started again, 1 of 5 times within a minute" in line
        assert program.partition("_")[2] in line
        deadline = time.monotonic() + DEADLINE_S
        while children(process).get(program) in {None, before[program]}:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    deadline = time.monotonic() + DEADLINE_S
    while subprocess.run(
        [*EVENQ, "cluster", "show", "--endpoint", endpoint], capture_output=True, check=False
    ).returncode:
        assert time.monotonic() < deadline
    assert len(consumed(endpoint, "orders", "billing", 10, "--from", "first")) == 10
    assert ended(process)[0] == 0


@pytest.mark.slow  # servers are killed and started again
def test_a_killed_broker_without_a_folder_has_its_topics_again_and_says_what_is_lost(up, port):
    process, endpoint = up("--port", str(port), "--processes", "--topic", "orders:2")
    os.kill(children(process)["evenq_broker"], signal.SIGKILL)
    assert "its messages were in memory and are lost" in process.stderr.readline()
    deadline = time.monotonic() + DEADLINE_S
    command = [*EVENQ, "topic", "show", "orders", "--endpoint", endpoint]
    while subprocess.run(command, capture_output=True, check=False).returncode:
        assert time.monotonic() < deadline
    assert ended(process)[0] == 0


@pytest.mark.slow  # servers are killed and started again
def test_a_server_that_does_not_stay_up_ends_the_whole(up, port):
    process, _ = up("--port", str(port), "--processes")
    before = children(process)
    for number in range(6):
        os.kill(children(process)["evenq_nameserver"], signal.SIGKILL)
        line = process.stderr.readline()
        assert (f"{number + 1} of 5" in line) == (number < 5), line
        assert "nameserver-0 was ended by SIGKILL" in line
        deadline = time.monotonic() + DEADLINE_S
        while number < 5 and children(process).get("evenq_nameserver") in {None, before["evenq_nameserver"]}:
            assert time.monotonic() < deadline
        before = children(process) if number < 5 else {}
    assert process.wait(timeout=DEADLINE_S) == 1


@pytest.mark.slow
def test_unknown_names_are_told_with_what_to_do(up, port):
    _, endpoint = up("--port", str(port))
    assert "evenq topic" in evenq("topic", "show", "nothing", code=3, endpoint=endpoint)
    assert "evenq group" in evenq("group", "show", "nobody", code=3, endpoint=endpoint)
    assert "broker-a" in evenq("broker", "show", "broker-z", code=3, endpoint=endpoint)
    assert "topic" in evenq("topic", "create", "no blanks", code=2, endpoint=endpoint)


def browsed(url, path=""):
    with urllib.request.urlopen(url + path, timeout=DEADLINE_S) as answer:
        return answer.read().decode()


@pytest.mark.parametrize("options", [(), ("--tls",), pytest.param(("--processes",), marks=pytest.mark.slow)])
def test_declared_topics_are_written_as_tables_beside_it(up, port, tmp_path, options):
    tables = tmp_path / "tables"
    words = ("--port", str(port), "--data", str(tmp_path / "data"), "--tables", str(tables), "--console-port", "-1")
    process, endpoint = up(*words, *options)
    ca = {"EVENQ_TLS_CA": str(tmp_path / "data" / "tls" / "ca.pem")} if options == ("--tls",) else {}
    # The table's settings: with the default ones the first file comes after ten minutes.
    evenq("topic", "create", "kept", "--queues", "1", endpoint=endpoint, **ca)
    few = ("--rows-per-file", "100", "--close-after", "1s", "--settle", "100ms")
    evenq("table", "export", "kept", "--to", tables, *few, endpoint=endpoint, **ca)
    evenq("topic", "create", "kept", "--table", endpoint=endpoint, **ca)
    evenq("produce", "kept", "--count", "120", endpoint=endpoint, **ca)
    evenq("produce", "other", "--count", "120", endpoint=endpoint, **ca)
    until(lambda: list(tables.rglob("*.parquet")), "files", seconds=DEADLINE_S)
    assert [path.name for path in tables.iterdir()] == ["kept"]
    writer = children(process)["table"]
    code, errors = ended(process)
    assert code == 0, errors
    assert "wrote " in errors
    assert not runs(writer)


def test_the_program_of_the_tables_ends_with_it_and_is_missed(up, port, tmp_path):
    process, _ = up("--port", str(port), "--tables", str(tmp_path), "--console-port", "-1")
    writer = children(process)["table"]
    process.kill()
    until(lambda: not runs(writer), "the end of the writer", seconds=DEADLINE_S)
    process, _ = up("--port", str(port), "--tables", str(tmp_path), "--console-port", "-1")
    writer = children(process)["table"]
    os.kill(writer, signal.SIGKILL)
    time.sleep(0.5)
    code, errors = ended(process)
    assert code == 0
    assert "no table is written any more: exit code -9. Start it again: evenq table follow --to" in errors


def test_the_console_is_named_in_the_ready_line_and_shows_a_message(up):
    process, endpoint = up("--port", "0", "--topic", "orders:1")
    (url,) = re.findall(r"console (http://127\.0\.0\.1:\d+/)", process.first_line)
    evenq("produce", "orders", "--body", "seen in the browser", endpoint=endpoint)
    assert "broker-a" in browsed(url)
    assert "seen in the browser" in browsed(url, "topics/orders")
    other = subprocess.run(
        [*EVENQ, "up", "--port", "0", "--metrics-port", "-1", "--console-port", url.split(":")[2].strip("/")],
        capture_output=True, text=True, timeout=DEADLINE_S, check=False,
    )  # fmt: skip
    assert other.returncode == 2
    assert "is in use" in other.stderr
    code, errors = ended(process)
    assert (code, errors) == (0, "")


def test_a_console_of_another_cluster_is_one_command_and_ends_in_order(up):
    process, endpoint = up("--port", "0", "--console-port", "-1", "--topic", "orders:1")
    assert "console" not in process.first_line
    console = subprocess.Popen(
        [*EVENQ, "console", "--endpoint", endpoint, "--port", "0", "--prefix", "/evenq"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        _, url, mode = console.stdout.readline().split(maxsplit=2)
        assert mode == "(read-only)\n"
        assert "orders" in browsed(url, "topics")
        assert ended(console, signal.SIGTERM) == (0, "")
    finally:
        console.kill()
    assert ended(process)[0] == 0
