"""`evenq store` on real folders: exit codes, what is printed, and that nothing is ever written but by repair."""

import asyncio
import json
import os

import pytest
from evenq_broker.core.state.records import TopicPut, encode

from evenq.cli import __main__ as cli
from evenq.model import TopicConfig
from evenq.runtime.clock import FakeClock
from evenq.store import Append, FlushMode, MessageStore, StoreOptions
from evenq.store.log.messages import TimerAppend
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2

COUNT = 40


def entry(number, topic_id=1):
    system = definition_pb2.SystemProperties(tag="red", keys=[f"k{number}"], message_id=f"id{number}")
    body = b"\xff\xfe" if number == 3 else f"body {number}".encode()
    message = definition_pb2.Message(body=body, user_properties={"n": str(number)})
    return Append(topic_id, number % 2, 7, 1_000 + number, message.SerializeToString(), system.SerializeToString())


async def fill(folder, *, close=True):
    clock = FakeClock()
    options = StoreOptions(segment_bytes=8192, flush=FlushMode.SYNC)
    store = await MessageStore.open(
        folder, options, clock=clock, broker_name="broker-a", on_state=lambda *_: None, on_snapshot=lambda _: None
    )
    await store.append_state(encode([TopicPut(TopicConfig(name="orders", topic_id=1))]))
    await store.save_snapshot(encode([TopicPut(TopicConfig(name="orders", topic_id=1))]))
    await store.append_state(encode([TopicPut(TopicConfig(name="jobs", topic_id=2))]))
    for number in range(COUNT):
        clock.jump_wall(1_000)
        await store.append([entry(number)])
    await store.append([entry(COUNT, topic_id=2)])
    if close:
        await store.close()
    return store


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "broker-a"
    asyncio.run(fill(path))
    return path


@pytest.fixture
def evenq(capsys):
    def run(*words):
        code = cli.main(["store", *map(str, words)])
        output = capsys.readouterr()
        return code, output.out, output.err

    return run


def content(folder):
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def damage(folder, byte=3000):
    path = folder / "commitlog" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    data[byte] ^= 1
    path.write_bytes(data)


def lines(text):
    return [json.loads(line) for line in text.splitlines()]


def test_a_clean_folder_is_told_clean_and_nothing_is_written(evenq, folder):
    before = content(folder)
    code, out, _ = evenq("verify", folder)
    assert code == 0
    assert out.rstrip().endswith("clean")
    assert "mib per second" in out
    assert evenq("inspect", folder)[0] == 0
    assert evenq("dump", folder)[0] == 0
    assert evenq("repair", folder)[0] == 0
    assert content(folder) == before


def test_findings_are_told_with_place_meaning_and_next_command(evenq, folder):
    damage(folder)
    code, out, _ = evenq("verify", folder)
    assert code == 1
    assert "LOST  log-damaged  commitlog/00000000000000000000 at byte 2" in out
    assert "next: restore the folder from a copy" in out
    assert "NOT clean: 1 lost" in out
    code, out, _ = evenq("verify", folder, "--json")
    seen = json.loads(out)
    assert code == 1
    assert not seen["clean"]
    assert [finding["kind"] for finding in seen["findings"]] == ["log-damaged"]


def test_a_folder_that_is_none_is_exit_code_2(evenq, tmp_path):
    code, _, err = evenq("verify", tmp_path)
    assert code == 2
    assert "`identity`" in err
    assert evenq("inspect", tmp_path)[0] == 2
    assert evenq("inspect", tmp_path / "nowhere")[0] == 2
    code, _, err = evenq("verify", tmp_path / "nowhere")
    assert code == 2
    assert "nowhere" in err
    assert not (tmp_path / "nowhere").exists()


def test_inspect_shows_files_and_what_a_start_reads(evenq, folder):
    code, out, _ = evenq("inspect", folder, "--json")
    seen = json.loads(out)
    assert code == 0
    assert seen["state"] == "stopped in order"
    assert sum(row["messages"] for row in seen["segments"]) == COUNT + 1
    assert seen["start_reads_bytes"] == seen["log_end"] - seen["snapshot_at"]
    assert "log file" in evenq("inspect", folder, "--quick")[1]


def test_dump_shows_names_keys_and_bodies(evenq, folder):
    code, out, _ = evenq("dump", folder)
    rows = lines(out)
    assert code == 0
    assert len(rows) == COUNT + 1
    assert rows[2] | {"log_offset": 0, "store_ms": 0} == {
        "kind": "message", "topic": "orders", "topic_id": 1, "queue_id": 0, "queue_offset": 1, "log_offset": 0,
        "store_ms": 0, "born_ms": 1_002, "message_id": "id2", "tag": "red", "keys": ["k2"], "message_group": None,
        "properties": {"n": "2"}, "body": "body 2",
    }  # fmt: skip
    assert rows[3]["body_base64"] == "//4="
    assert rows[-1]["topic"] == "jobs"


def test_dump_chooses_by_topic_queue_time_and_count(evenq, folder):
    assert len(lines(evenq("dump", folder, "--topic", "jobs")[1])) == 1
    assert len(lines(evenq("dump", folder, "--topic", "2")[1])) == 1
    assert len(lines(evenq("dump", folder, "--topic", "orders", "--queue", "1")[1])) == COUNT // 2
    times = [row["store_ms"] for row in lines(evenq("dump", folder)[1])]
    assert len(lines(evenq("dump", folder, "--from", times[10], "--to", times[15])[1])) == 5
    assert len(lines(evenq("dump", folder, "--from", "2023-11-14T22:13:30+00:00")[1])) == COUNT - 8
    assert len(lines(evenq("dump", folder, "--limit", "3")[1])) == 3
    code, _, err = evenq("dump", folder, "--topic", "order")
    assert code == 3
    assert "jobs, orders" in err
    assert evenq("dump", folder, "--from", "yesterday")[0] == 2


def test_dump_shows_states_and_never_the_key_of_handles(evenq, folder):
    states = [row for row in lines(evenq("dump", folder, "--states")[1]) if row["kind"] == "state"]
    assert [row["operations"][0]["topic"]["name"] for row in states] == ["orders", "jobs"]


async def test_dump_shows_timers_and_their_ends(evenq, tmp_path):
    store = await fill(tmp_path / "broker-a", close=False)
    made = entry(50)
    timer = TimerAppend(1, 0, 7, due_ms=5_000, kind=1, born_ms=1, head=made.head, system=made.system)
    await store.append([], timers=[timer])
    await store.append([entry(50)], ended=[timer.log_offset])
    await store.close()
    log_offset = timer.log_offset
    rows = lines(evenq("dump", tmp_path / "broker-a", "--timers")[1])
    (timer,) = [row for row in rows if row["kind"] == "timer"]
    assert (timer["log_offset"], timer["due_ms"], timer["timer_kind"]) == (log_offset, 5_000, 1)
    assert (timer["topic"], timer["body"]) == ("orders", "body 50")
    (end,) = [row for row in rows if row["kind"] == "timer_end"]
    assert end["timers"] == [log_offset]
    code, out, _ = evenq("verify", tmp_path / "broker-a")
    assert code == 0, out


def test_parquet_holds_what_json_holds(evenq, folder, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    code, out, _ = evenq("dump", folder, "--format", "parquet", "--output", tmp_path / "m.parquet")
    assert (code, out) == (0, "")
    rows = parquet.read_table(tmp_path / "m.parquet").to_pylist()
    want = lines(evenq("dump", folder)[1])
    assert len(rows) == len(want) == COUNT + 1
    for row, line in zip(rows, want, strict=True):
        for name in ("topic", "queue_id", "queue_offset", "log_offset", "message_id", "tag", "keys"):
            assert row[name] == line[name]
        assert dict(row["properties"]) == line["properties"]
        assert row["body"] == line["body"].encode() if "body" in line else b"\xff\xfe"
        assert int(row["store_time"].timestamp() * 1000) == line["store_ms"]


def test_without_pyarrow_the_extra_is_named(evenq, folder, tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    code, _, err = evenq("dump", folder, "--format", "parquet", "--output", tmp_path / "m.parquet")
    assert code == 4
    assert "pip install 'evenq[tables]'" in err
    assert "--output" in evenq("dump", folder, "--format", "parquet")[2]


def test_repair_shows_first_and_does_with_apply(evenq, folder):
    (folder / "checkpoint").write_bytes(b"junk")
    before = content(folder)
    code, out, _ = evenq("repair", folder)
    assert code == 0
    assert "would be done" in out
    assert "--apply" in out
    assert content(folder) == before
    code, out, _ = evenq("repair", folder, "--apply", "--json")
    done = json.loads(out)
    assert code == 0
    assert done["applied"]
    assert not (folder / "checkpoint").exists()
    (moved,) = folder.glob("repair-*")
    assert (moved / "checkpoint").read_bytes() == b"junk"
    assert str(moved) == done["kept_in"]
    asyncio.run(fill(folder))
    assert evenq("verify", folder)[0] == 0


def test_what_is_cut_is_listed_and_can_be_dumped(evenq, folder):
    damage(folder, 5000)
    code, out, _ = evenq("repair", folder)
    assert code == 1
    assert "--accept-loss" in out
    code, out, _ = evenq("repair", folder, "--accept-loss")
    assert code == 0
    assert "of queue 1 of topic 1" in out
    assert evenq("repair", folder, "--accept-loss", "--apply")[0] == 0
    (moved,) = folder.glob("repair-*")
    kept = lines(evenq("dump", folder)[1])
    code, out, err = evenq("dump", moved)
    assert "cannot be read" in err
    assert len(kept) + len(lines(out)) == COUNT  # all but the damaged one
    code, out, _ = evenq("verify", folder)
    assert code == 0
    assert "checkpoint" in out  # none until the next start, which is no damage
    asyncio.run(fill(folder))
    assert evenq("verify", folder)[0] == 0


COPY = {
    "cluster": "evenq", "broker_id": 1, "store_id": "0" * 32, "epoch": 7, "boot_id": "b", "clean": True,
}  # fmt: skip


def test_a_copy_that_is_cut_is_another_store_to_its_group(evenq, folder):
    """The group record lets a store lead by itself: one without a part of its log would have the others cut."""
    (folder / "replica").write_text(json.dumps(COPY))
    (folder / "checkpoint").write_bytes(b"junk")
    assert evenq("repair", folder, "--apply")[0] == 0
    assert json.loads((folder / "replica").read_text()) == COPY, "nothing of the log was cut"
    damage(folder, 5000)
    code, out, _ = evenq("repair", folder, "--accept-loss")
    assert code == 0
    assert "does not lead before it is in sync" in " ".join(out.split())
    assert json.loads((folder / "replica").read_text()) == COPY, "a plan changes nothing"
    code, out, _ = evenq("repair", folder, "--accept-loss", "--apply", "--json")
    assert (code, json.loads(out)["new_copy"]) == (0, True)
    now = json.loads((folder / "replica").read_text())
    assert now.pop("store_id") not in {COPY["store_id"], ""}
    assert now == {key: value for key, value in COPY.items() if key != "store_id"}


def test_a_copy_whose_identity_cannot_be_changed_is_not_cut(evenq, folder):
    (folder / "replica").write_text("{")
    damage(folder, 5000)
    log = content(folder / "commitlog")
    code, _, err = evenq("repair", folder, "--accept-loss", "--apply")
    assert code == 1
    assert "start this copy with an empty folder" in err
    assert content(folder / "commitlog") == log


async def test_beside_a_running_store_only_reading_is_done(evenq, tmp_path):
    path = tmp_path / "broker-a"
    store = await fill(path, close=False)
    await store.checkpoint()
    await store.append([entry(41)])
    seen = [evenq("verify", path), evenq("repair", path), evenq("repair", path, "--apply"), evenq("inspect", path)]
    await store.close()
    (verified, *refused, inspected) = seen
    assert verified[0] == 0
    assert f"running, process {os.getpid()}" in verified[1]
    assert "up to the checkpoint" in verified[1]
    assert all(code == 1 and f"process {os.getpid()}" in err for code, _, err in refused)
    assert inspected[0] == 0


def test_a_folder_that_may_only_be_read_is_enough(evenq, folder):
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        assert evenq("verify", folder)[0] == 0
    finally:
        for path in (folder, *folder.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
