"""`evenq schedule`: what is called and what is printed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from evenq.wire.stubs.evenq.v1 import admin_pb2


def state(**fields: Any) -> admin_pb2.ScheduleState:
    schedule = admin_pb2.Schedule(
        topic="t", name="s", every_ms=600_000, missed="all", missed_max=5, body=b"\x1b[31mx", keys=["k"],
        properties={"p": "v"},
    )  # fmt: skip
    made = {"broker_name": "a", "next_ms": 1_700_000_000_000, "fired": 3, "passed": 1, **fields}
    return admin_pb2.ScheduleState(schedule=schedule, **made)


def test_a_schedule_is_created_from_all_options(run: Any, tmp_path: Path) -> None:
    (tmp_path / "body").write_bytes(b"from a file\n")
    code, out, error, calls = run(
        f"schedule create t s --every 10m --file {tmp_path / 'body'} --tag a --key k1 --key k2 --property p=v "
        "--message-group g --missed all --missed-max 5",
        PutSchedule=admin_pb2.PutScheduleResponse(state=state()),
    )
    assert code == 0, error
    request = admin_pb2.PutScheduleRequest.FromString(calls[0][1]).schedule
    assert request == admin_pb2.Schedule(
        topic="t", name="s", every_ms=600_000, missed="all", missed_max=5, body=b"from a file\n", tag="a",
        keys=["k1", "k2"], message_group="g", properties={"p": "v"},
    )  # fmt: skip
    assert "every 10m" in out


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--body x", "one of the arguments --schedule --every is required"),
        ("--every 10m", "one of the arguments --body --file is required"),
        ("--every 10m --schedule @daily --body x", "not allowed with"),
        ("--every 10 --body x", "'10' is not a duration"),
        ("--every 10ms --body x", "the range is 1000 ms (1 s)"),
        ("--every 10m --body x --missed-max 5", "--missed-max needs --missed all"),
        ("--every 10m --body x --missed all --missed-max 101", "101 is above 100"),
        ("--every 10m --body x --missed two", "invalid choice: 'two'"),
        ("--every 10m --file /absent/file", "No such file"),
    ],
)
def test_what_cannot_be_asked_for_is_refused(
    run: Any, capsys: pytest.CaptureFixture[str], line: str, message: str
) -> None:
    try:
        code, _, error, calls = run(f"schedule create t s {line}")
    except SystemExit as ended:
        code, error, calls = ended.code, capsys.readouterr().err, []
    assert (code != 0, calls) == (True, [])
    assert message in error


def test_schedules_are_a_table_or_json(run: Any) -> None:
    answer = admin_pb2.ListSchedulesResponse(schedules=[state(), state(paused=True, next_ms=0)], silent=["b"])
    code, out, error, calls = run("schedule list t", ListSchedules=answer)
    assert code == 1, "a broker did not answer"
    assert admin_pb2.ListSchedulesRequest.FromString(calls[0][1]) == admin_pb2.ListSchedulesRequest(topic="t")
    assert ("every 10m" in out, "paused" in out, "b" in error) == (True, True, True)
    _, out, _, _ = run("schedule list --json", ListSchedules=answer)
    assert [(one["state"], one["fired"], one["missed"]) for one in json.loads(out)] == [
        ("active", 3, 1),
        ("paused", 3, 1),
    ]
    _, out, _, _ = run("schedule list", ListSchedules=admin_pb2.ListSchedulesResponse())
    assert "No schedules. Create one: evenq schedule create" in out


def test_a_schedule_is_shown_without_control_characters(run: Any) -> None:
    answer = admin_pb2.ListSchedulesResponse(schedules=[state(problem="broker a is being drained")])
    code, out, _, _ = run("schedule show t s", ListSchedules=answer)
    assert code == 0
    for text in ("failing", "broker a is being drained", "all, at most 5", "p=v"):
        assert text in out
    assert "\x1b" not in out
    code, _, error, _ = run("schedule show t s", ListSchedules=admin_pb2.ListSchedulesResponse(silent=["b"]))
    assert code != 0
    assert "topic t has no schedule 's'" in error
    assert "brokers that did not answer: b" in error


def test_a_schedule_is_paused_resumed_run_moved_and_deleted(run: Any) -> None:
    for word, paused in (("pause", True), ("resume", False)):
        _, _, _, calls = run(f"schedule {word} t s", PauseSchedule=admin_pb2.PauseScheduleResponse(state=state()))
        request = admin_pb2.PauseScheduleRequest.FromString(calls[0][1])
        assert (request.topic, request.name, request.paused) == ("t", "s", paused)
    _, out, _, _ = run("schedule run t s", RunSchedule=admin_pb2.RunScheduleResponse(message_id="id1"))
    assert "Message id1 was sent to topic t." in out
    moved = admin_pb2.MoveScheduleResponse(state=state(moving_to="b", problem="it is being moved"))
    _, out, _, calls = run("schedule move t s --to b", MoveSchedule=moved)
    assert ("moving" in out, admin_pb2.MoveScheduleRequest.FromString(calls[0][1]).to) == (True, "b")
    _, out, _, calls = run("schedule delete t s", DeleteSchedule=admin_pb2.DeleteScheduleResponse())
    assert "Schedule s of topic t is deleted." in out
    assert admin_pb2.DeleteScheduleRequest.FromString(calls[0][1]).name == "s"
