"""Tables of real brokers: each acknowledged message is once in files and tail, whatever happens to the exporter."""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
from evenq_proofs.command_line import EVENQ, evenq_json, evenq_process, run_evenq
from evenq_proofs.waiting import until

import evenq
from evenq.errors import Error
from evenq.testing import LocalCluster

pytestmark = [pytest.mark.timeout(300), pytest.mark.cluster(rebalancer=False)]

FAST = ("--rows-per-file", "100", "--close-after", "1s", "--settle", "200ms")


def send(endpoint: str, topic: str, count: int, *, first: int = 0, queues: int = 2, body: bytes = b"") -> list[str]:
    """Sends numbered messages with tag, key and property; returns the bodies of those that were acknowledged."""
    with evenq.Admin(endpoint=endpoint) as admin:
        admin.create_topic(topic, queues=queues)
    bodies = [f"{topic} {number} ".encode() + body for number in range(first, first + count)]
    with evenq.Producer(endpoint=endpoint) as producer:
        producer.send_batch(
            [
                evenq.Message(topic=topic, body=text, tag="t", keys=(f"k{number}",), properties={"n": str(number)})
                for number, text in enumerate(bodies, first)
            ]
        )
    return [text.decode(errors="replace") for text in bodies]


def rows(folder: Path, topic: str) -> list[dict[str, Any]]:
    table: Any = ds.dataset(folder / topic, format="parquet").to_table()
    return table.to_pylist()


def export(endpoint: str, topic: str, folder: Path, *more: str, **options: Any) -> Any:
    """Exports until nothing is left in an open file."""
    made: dict[str, Any] = {}

    def done() -> bool:
        made.update(evenq_json("table", "export", topic, "--to", folder, *more, endpoint=endpoint, **options))
        return not made["left"]

    until(done, "all messages in the table", seconds=60)
    return made


def spans(folder: Path, topic: str) -> list[str]:
    return sorted(path.relative_to(folder / topic).as_posix() for path in (folder / topic).rglob("*.parquet"))


def start(*words: object, endpoint: str, **options: Any) -> subprocess.Popen[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("EVENQ_")}
    return subprocess.Popen(
        [*EVENQ, *map(str, words)], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=environment | {"EVENQ_ENDPOINT": endpoint}, **options,
    )  # fmt: skip


def test_every_message_is_in_one_file_with_all_its_fields(cluster: LocalCluster, tmp_path: Path) -> None:
    sent = send(cluster.endpoint, "orders", 530)
    export(cluster.endpoint, "orders", tmp_path, *FAST)
    found = rows(tmp_path, "orders")
    assert sorted(row["body"].decode() for row in found) == sorted(sent)
    row = next(row for row in found if row["keys"] == ["k7"])
    assert (row["topic"], row["tag"], row["properties"], row["body"]) == ("orders", "t", [("n", "7")], b"orders 7 ")
    assert row["messageId"]
    assert 0 <= row["storeTimestamp"].timestamp() - row["bornTimestamp"].timestamp() < 60
    verified = evenq_json("table", "verify", "orders", "--to", tmp_path, "--whole", endpoint=cluster.endpoint)
    assert (verified["clean"], verified["rows"]) == (True, 530)
    shown = evenq_json("table", "show", "orders", "--to", tmp_path, endpoint=cluster.endpoint)
    assert [(one["rows"], one["lag"], one["gaps"]) for one in shown] == [(265, 0, 0), (265, 0, 0)]
    [listed] = evenq_json("table", "list", "--to", tmp_path)
    assert (listed["topic"], listed["queues"], listed["rows"]) == ("orders", 2, 530)


@pytest.mark.slow
def test_a_repeat_and_a_second_exporter_write_the_same_names(cluster: LocalCluster, tmp_path: Path) -> None:
    send(cluster.endpoint, "twice", 350, queues=3)
    words = ("table", "follow", "twice", "--to", tmp_path, *FAST, "--every", "100ms")
    both = [start(*words, endpoint=cluster.endpoint) for _ in range(2)]
    until(
        lambda: (
            sum(row["queueOffset"] >= 0 for row in rows(tmp_path, "twice")) == 350
            if spans(tmp_path, "twice")
            else False
        ),
        "all rows",
        seconds=60,
    )
    for one in both:
        one.send_signal(signal.SIGTERM)
        _, errors = one.communicate(timeout=60)
        assert one.returncode == 0, errors
        assert "Traceback" not in errors
    names, times = spans(tmp_path, "twice"), [path.stat().st_mtime_ns for path in sorted(tmp_path.rglob("*.parquet"))]
    again = export(cluster.endpoint, "twice", tmp_path)
    assert again["files"] == 0
    export(cluster.endpoint, "twice", tmp_path / "other", *FAST)
    assert spans(tmp_path / "other", "twice") == names
    assert [path.stat().st_mtime_ns for path in sorted(tmp_path.glob("twice/**/*.parquet"))] == times
    assert not list(tmp_path.rglob("*.tmp"))


def test_settings_that_would_cut_other_files_are_refused(cluster: LocalCluster, tmp_path: Path) -> None:
    send(cluster.endpoint, "cut", 10)
    export(cluster.endpoint, "cut", tmp_path, *FAST)
    text = run_evenq(
        "table", "export", "cut", "--to", tmp_path, "--rows-per-file", 200, endpoint=cluster.endpoint, code=4
    )
    assert "was begun with --rows-per-file 100, not 200" in text
    assert len(text.splitlines()) == 1


def test_a_wrong_name_leaves_no_folder(cluster: LocalCluster, tmp_path: Path) -> None:
    for words in (("table", "export"), ("table", "follow")):
        text = run_evenq(*words, "ordrs", "--to", tmp_path / "t", endpoint=cluster.endpoint, code=3)
        assert "ordrs" in text
        assert "evenq topic list" in text
    assert not (tmp_path / "t").exists()
    with evenq.Admin(endpoint=cluster.endpoint) as admin:
        assert "ordrs" not in {one.topic for one in admin.list_topics()}
    assert "evenq table export" in run_evenq("table", "show", "ordrs", "--to", tmp_path, "--offline", code=3)
    assert "evenq table export" in run_evenq("table", "verify", "--to", tmp_path / "t", "--offline", code=3)


@pytest.mark.slow
def test_a_topic_that_is_created_again_gets_its_own_folder_and_the_old_files_stay(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    send(cluster.endpoint, "again", 120, queues=1)
    export(cluster.endpoint, "again", tmp_path, *FAST)
    with evenq.Admin(endpoint=cluster.endpoint) as admin:
        admin.delete_topic("again")
    gone = evenq_process("table", "show", "again", "--to", tmp_path, endpoint=cluster.endpoint)
    assert gone.returncode == 0, gone.stderr
    assert "does not exist any more" in gone.stderr
    send(cluster.endpoint, "again", 50, first=1_000, queues=1)
    export(cluster.endpoint, "again", tmp_path)
    shown = evenq_json("table", "show", "again", "--to", tmp_path, endpoint=cluster.endpoint)
    assert Counter((one["rows"], one["lag"]) for one in shown) == {(120, None): 1, (50, 0): 1}
    assert evenq_json("table", "verify", "again", "--to", tmp_path, endpoint=cluster.endpoint)["clean"]


@pytest.mark.slow
def test_a_full_disk_shows_no_half_file_and_the_next_run_continues(cluster: LocalCluster, tmp_path: Path) -> None:
    send(cluster.endpoint, "full", 300, queues=1, body=os.urandom(2_000))

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2_000, 2_000))

    words = ("table", "export", "full", "--to", tmp_path, *FAST, "--tail", "--settle", "1ms")
    process = start(*words, endpoint=cluster.endpoint, preexec_fn=limit)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1, errors
    assert "free space and run it again" in errors
    assert "Traceback" not in errors
    assert spans(tmp_path, "full") == []
    assert not list(tmp_path.rglob("*.tmp"))
    export(cluster.endpoint, "full", tmp_path)
    assert sorted(row["queueOffset"] for row in rows(tmp_path, "full")) == list(range(300))


def test_a_target_that_cannot_be_a_folder_is_named(cluster: LocalCluster, tmp_path: Path) -> None:
    send(cluster.endpoint, "target", 10)
    (tmp_path / "file").write_text("")
    text = run_evenq("table", "export", "target", "--to", tmp_path / "file", endpoint=cluster.endpoint, code=1)
    assert f"{tmp_path}/file" in text
    assert len(text.splitlines()) == 1


class Sender(threading.Thread):
    """Sends numbered messages until it is stopped; keeps what was acknowledged."""

    def __init__(self, endpoint: str, topic: str) -> None:
        super().__init__(daemon=True)
        self._endpoint, self.topic, self._ended = endpoint, topic, threading.Event()
        self.acknowledged: list[str] = []
        self.tried = 0

    def run(self) -> None:
        with evenq.Producer(endpoint=self._endpoint) as producer:
            while not self._ended.wait(0.005):
                self.tried += 1
                body = f"{self.topic} {self.tried}"
                try:
                    producer.send(evenq.Message(topic=self.topic, body=body.encode()))
                except Error:
                    continue
                self.acknowledged.append(body)

    def stop(self) -> None:
        self._ended.set()
        self.join(60)


def union(endpoint: str, folder: Path, topic: str) -> list[dict[str, Any]]:
    """Every row of table and tail, by DuckDB."""
    sql = f"select brokerName b, queueId q, queueOffset o, decode(body) body from {topic}"
    found: list[dict[str, Any]] = evenq_json("query", sql, "--tables", folder, endpoint=endpoint)
    return found


def must_be_exactly_once(endpoint: str, folder: Path, sender: Sender) -> None:
    """Messages acknowledged before are in table and tail, each offset and each message once."""
    acknowledged = set(sender.acknowledged)
    found = union(endpoint, folder, sender.topic)
    places = Counter((row["b"], row["q"], row["o"]) for row in found)
    assert max(places.values()) == 1, "an offset twice"
    for queue in {(row["b"], row["q"]) for row in found}:
        offsets = sorted(row["o"] for row in found if (row["b"], row["q"]) == queue)
        assert offsets == list(range(len(offsets))), "a hole"
    bodies = Counter(row["body"] for row in found)
    assert not acknowledged - set(bodies), "an acknowledged message is missing"
    assert max(bodies.values()) == 1


@pytest.mark.slow  # thirty processes, one after the other
def test_an_exporter_that_is_killed_at_any_moment_loses_and_repeats_nothing(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    pytest.importorskip("duckdb")
    with evenq.Admin(endpoint=cluster.endpoint) as admin:
        admin.create_topic("killed", queues=2)
    sender, rng = Sender(cluster.endpoint, "killed"), random.Random(35)
    sender.start()
    words = ("table", "follow", "killed", "--to", tmp_path, *FAST, "--every", "100ms")
    for round_ in range(30):
        process = start(*words, endpoint=cluster.endpoint)
        lines = process.stderr
        assert lines is not None
        assert "following" in lines.readline()
        match round_ % 3:  # the moment of the kill
            case 0:
                time.sleep(rng.uniform(0, 1.5))
            case 1:
                assert any("wrote" in line for line in lines)
                time.sleep(rng.uniform(0, 0.2))
            case _:
                until(lambda: list(tmp_path.rglob("*.tmp")), "a file that is being written", seconds=120)
        process.kill()
        process.communicate()
        if round_ % 10 == 9:
            must_be_exactly_once(cluster.endpoint, tmp_path, sender)
    sender.stop()
    must_be_exactly_once(cluster.endpoint, tmp_path, sender)
    export(cluster.endpoint, "killed", tmp_path)
    assert not list(tmp_path.rglob("*.tmp")), "drafts of killed exporters are removed"
    verified = evenq_json("table", "verify", "killed", "--to", tmp_path, "--whole", endpoint=cluster.endpoint)
    assert verified["clean"], verified
    assert verified["rows"] >= len(sender.acknowledged)


@pytest.mark.slow
@pytest.mark.cluster(rebalancer=False)
def test_a_broker_that_is_killed_while_it_is_followed(cluster: LocalCluster, tmp_path: Path) -> None:
    """One line when the failure begins, one when it ends; each message once."""
    pytest.importorskip("duckdb")
    with evenq.Admin(endpoint=cluster.endpoint) as admin:
        admin.create_topic("restarted", queues=1)
    sender = Sender(cluster.endpoint, "restarted")
    sender.start()
    words = ("table", "follow", "restarted", "--to", tmp_path, *FAST, "--every", "100ms", "--timeout", "2")
    process = start(*words, endpoint=cluster.endpoint)
    until(lambda: len(spans(tmp_path, "restarted")) >= 2, "some files", seconds=60)
    [node] = cluster.brokers
    node.kill()
    node.restart()
    grown = len(spans(tmp_path, "restarted"))
    until(lambda: len(spans(tmp_path, "restarted")) >= grown + 2, "more files", seconds=60)
    sender.stop()
    process.terminate()
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    lines = [json.loads(line) for line in errors.splitlines()]
    warnings = [line for line in lines if line["level"] != "INFO"]
    assert 1 <= len(warnings) <= 3, errors
    must_be_exactly_once(cluster.endpoint, tmp_path, sender)


def test_all_declared_tables_are_followed_also_those_that_come_later(cluster: LocalCluster, tmp_path: Path) -> None:
    for topic in ("first%all-a", "all-b"):
        run_evenq("topic", "create", topic, "--table", "--queues", 1, endpoint=cluster.endpoint)
    for topic in ("first%all-a", "all-b", "all-c", "all-no"):
        send(cluster.endpoint, topic, 120, queues=1)
    process = start("table", "follow", "--to", tmp_path, *FAST, "--every", "100ms", endpoint=cluster.endpoint)
    inner = start(
        "table", "follow", "--namespace", "first", "--to", tmp_path / "inner", *FAST, "--every", "100ms",
        endpoint=cluster.endpoint,
    )  # fmt: skip
    until(lambda: spans(tmp_path, "first%all-a") and spans(tmp_path, "all-b"), "files of both", seconds=60)
    run_evenq("topic", "create", "all-c", "--table", endpoint=cluster.endpoint)
    until(lambda: spans(tmp_path, "all-c"), "files of the one that came later", seconds=60)
    run_evenq("topic", "delete", "all-b", "--yes", endpoint=cluster.endpoint)
    send(cluster.endpoint, "all-c", 120, first=120, queues=1)
    until(lambda: len(rows(tmp_path, "all-c")) >= 200, "more files beside one that fails", seconds=60)
    until(lambda: spans(tmp_path / "inner", "first%all-a"), "files of the namespace", seconds=60)
    for one in (process, inner):
        one.terminate()
        _, errors = one.communicate(timeout=60)
        assert one.returncode == 0, errors
    names = {path.name for path in tmp_path.iterdir()}  # other tests of this cluster have declared tables, too
    assert names >= {"first%all-a", "all-b", "all-c"}
    assert "all-no" not in names
    assert {path.name for path in (tmp_path / "inner").iterdir()} == {"first%all-a"}
    words = ("table", "follow", "--to", tmp_path, "--table-schema", tmp_path / "orders.json")
    assert "name the topic" in run_evenq(*words, endpoint=cluster.endpoint, code=2)


SHORT = {"STORE__RETENTION_MS": "1000", "STORE__RETENTION_HOUR": "-1", "STORE__SEGMENT_BYTES": str(1 << 20)}


@pytest.mark.slow
@pytest.mark.cluster(rebalancer=False, broker_settings=SHORT)
def test_messages_that_retention_deleted_first_are_an_error_until_they_are_accepted(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    filler = b"." * 2_000
    send(cluster.endpoint, "gone", 100, queues=1)
    export(cluster.endpoint, "gone", tmp_path, *FAST, "--no-report")  # otherwise retention waits

    def low() -> int:
        send(cluster.endpoint, "gone", 200, queues=1, body=filler)
        with evenq.Admin(endpoint=cluster.endpoint) as admin:
            return min(one.min_offset for one in admin.describe_topic("gone").queues)

    until(lambda: low() > 100, "retention", seconds=120)
    words = ("table", "export", "gone", "--to", tmp_path)
    text = run_evenq(*words, endpoint=cluster.endpoint, code=4)
    assert "retention deleted offsets 100 to" in text
    assert "--allow-gaps" in text
    findings = evenq_json("table", "verify", "gone", "--to", tmp_path, endpoint=cluster.endpoint, code=1)
    assert "retention deleted offsets 100 to" in findings["findings"][0]["what"]
    accepted = export(cluster.endpoint, "gone", tmp_path, "--allow-gaps")
    assert accepted["topic"] == "gone"
    [finding] = evenq_json("table", "verify", "gone", "--to", tmp_path, "--offline", code=1)["findings"]
    assert "the gap was accepted" in finding["what"]
    [shown] = evenq_json("table", "show", "gone", "--to", tmp_path, "--offline")
    assert shown["gaps"] > 0
    assert shown["rows"] == len(rows(tmp_path, "gone"))


USERS = """
[users.evenq-internal]
secret = "canary-internal-4711"
internal = true
[users.root]
secret = "canary-root-4711"
admin = true
[users.lake]
secret = "canary-lake-4711"
allow = [{ resource = "topic:orders", actions = ["describe", "consume"] }]
[users.shop]
secret = "canary-shop-4711"
allow = [{ resource = "topic:orders", actions = ["publish"] }]
"""
ROOT = evenq.Credentials(access_key="root", secret_key="canary-root-4711")


def fill_orders(admin: evenq.Admin) -> None:
    admin.create_topic("orders", queues=1)


@pytest.mark.cluster(rebalancer=False, users=USERS, admin=ROOT, prepare=fill_orders)
def test_the_exporter_needs_the_right_to_consume_the_topic(cluster: LocalCluster, tmp_path: Path) -> None:
    with evenq.Producer(endpoint=cluster.endpoint, credentials=ROOT) as producer:
        producer.send_batch([evenq.Message(topic="orders", body=b"%d" % number) for number in range(100)])

    def run(*words: str, user: str, secret: str = "", code: int = 0) -> str:
        keys = {"EVENQ_ACCESS_KEY": user, "EVENQ_SECRET_KEY": secret or f"canary-{user}-4711"} if user else {}
        return run_evenq(
            "table", "export", *words, "--to", tmp_path / "t", *FAST, endpoint=cluster.endpoint, code=code, **keys
        )

    assert "--credentials" in run("orders", user="", code=4)
    assert "--credentials" in run("orders", user="lake", secret="another", code=4)
    assert "evenq auth check" in run("orders", user="shop", code=4)
    assert "evenq auth check" in run("calls", user="lake", code=4)
    assert not list(tmp_path.rglob("*.parquet"))
    until(lambda: "left      0" in run("orders", user="lake"), "everything", seconds=60)
    assert len(rows(tmp_path / "t", "orders")) == 100


def test_expire_deletes_old_files_and_the_export_continues(cluster: LocalCluster, tmp_path: Path) -> None:
    send(cluster.endpoint, "old", 250, queues=1)
    export(cluster.endpoint, "old", tmp_path, *FAST)
    names = spans(tmp_path, "old")
    words = ("table", "expire", "old", "--to", tmp_path, "--before", "0s")
    assert "add --yes" in run_evenq(*words, code=1)
    assert spans(tmp_path, "old") == names
    assert evenq_json(*words, "--yes")["files"] == len(names) - 1
    assert spans(tmp_path, "old") == names[-1:]
    export(cluster.endpoint, "old", tmp_path)
    assert spans(tmp_path, "old") == names[-1:], "deleted rows do not return"
    assert evenq_json("table", "verify", "old", "--to", tmp_path, endpoint=cluster.endpoint)["clean"]


def test_rebuild_writes_a_damaged_file_and_a_missing_one_again(cluster: LocalCluster, tmp_path: Path) -> None:
    sent = send(cluster.endpoint, "mended", 450, queues=1)
    made = export(cluster.endpoint, "mended", tmp_path, "--tail", *FAST)
    files = sorted((tmp_path / "mended").rglob("*.parquet"))
    assert made["files"] == len(files) >= 5
    files[2].unlink()
    files[1].write_bytes(files[1].read_bytes()[:-9])
    words = ("table", "rebuild", "mended", "--to", tmp_path)
    assert evenq_json(*words, endpoint=cluster.endpoint) == {
        "topic": "mended", "files": 2, "rows": 200, "left": 0, "registered": 0, "failures": [],
    }  # fmt: skip
    run_evenq("table", "verify", "mended", "--to", tmp_path, "--whole", endpoint=cluster.endpoint)
    assert sorted(row["body"].decode().strip() for row in rows(tmp_path, "mended")) == sorted(map(str.strip, sent))
    words = ("table", "rebuild", "nothing", "--to", tmp_path)
    assert "write them: evenq table export nothing" in run_evenq(*words, endpoint=cluster.endpoint, code=3)


def test_memory_of_an_export_is_bounded(cluster: LocalCluster, tmp_path: Path) -> None:
    """100 MiB of messages in one file, below 256 MiB of resident memory."""
    with evenq.Admin(endpoint=cluster.endpoint) as admin:
        admin.create_topic("large", queues=1)
    with evenq.Producer(endpoint=cluster.endpoint) as producer:
        for _ in range(50):
            producer.send_batch([evenq.Message(topic="large", body=os.urandom(20_000)) for _ in range(100)])
    program = (
        "import sys\n"
        "from evenq.cli.__main__ import main\n"
        "code = main(sys.argv[1:])\n"
        # Not `ru_maxrss`, which begins at the memory of the process that started this one.
        "status = dict(line.split(':', 1) for line in open('/proc/self/status'))\n"
        "print('peak', status['VmHWM'].split()[0], file=sys.stderr)\n"
        "sys.exit(code)"
    )
    words = ("table", "export", "large", "--to", str(tmp_path), "--tail", "--settle", "100ms")
    done = subprocess.run(
        [sys.executable, "-c", program, *words, "--endpoint", cluster.endpoint],
        capture_output=True, text=True, timeout=240, check=True,
    )  # fmt: skip
    peak_kib = int(done.stderr.rpartition("peak ")[2])
    assert peak_kib < 256 << 10, f"{peak_kib >> 10} MiB"


def offsets(endpoint: str, group: str) -> dict[int, tuple[int, int]]:
    """Committed offset and lag by queue."""
    shown = evenq_json("offset", "show", group, endpoint=endpoint)
    return {one["queue"]: (one["committed"], one["lag"]) for one in shown["queues"]}


def test_the_ends_of_the_files_are_the_offsets_of_the_table_group(cluster: LocalCluster, tmp_path: Path) -> None:
    made = evenq_json("topic", "create", "ends", "--queues", 2, "--table", endpoint=cluster.endpoint)
    assert made["table_group"] == "evenq-table-ends"
    send(cluster.endpoint, "ends", 250)
    assert sorted(offsets(cluster.endpoint, "evenq-table-ends").values()) == [(0, 125), (0, 125)], "declared"
    done = export(cluster.endpoint, "ends", tmp_path, *FAST)
    assert done["reported"]
    assert sorted(offsets(cluster.endpoint, "evenq-table-ends").values()) == [(125, 0), (125, 0)]
    again = evenq_json("topic", "create", "ends", "--table", endpoint=cluster.endpoint)
    assert again["table_group"] == "evenq-table-ends"
    assert sorted(offsets(cluster.endpoint, "evenq-table-ends").values()) == [(125, 0), (125, 0)], "not moved back"


def test_the_first_export_declares_a_table_and_another_one_does_not_if_told_so(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    send(cluster.endpoint, "first", 50, queues=1)
    assert not export(cluster.endpoint, "first", tmp_path / "other", *FAST, "--no-report")["reported"]
    with evenq.Admin(endpoint=cluster.endpoint) as admin:
        assert "evenq-table-first" not in {one.group for one in admin.list_groups()}
    assert export(cluster.endpoint, "first", tmp_path, *FAST)["reported"]
    assert offsets(cluster.endpoint, "evenq-table-first") == {0: (50, 0)}
