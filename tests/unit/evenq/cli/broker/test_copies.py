"""What `evenq cluster show` says of broker groups, and `evenq broker move-leader`."""

from __future__ import annotations

import json
from typing import Any

import pytest

from evenq.errors import ConnectionFailed, NotFound, PreconditionFailed
from evenq.wire.stubs.evenq.v1 import admin_pb2

Copy = admin_pb2.BrokerCopy


def cluster(
    *, leader: int = 0, epoch: int = 4, third: int = Copy.IN_SYNC, since_ms: int = 0, mode: str = "sync"
) -> admin_pb2.DescribeClusterResponse:
    response = admin_pb2.DescribeClusterResponse(cluster="c", nameservers=["n:1"])
    response.brokers.add(answered=True).broker.name = "broker-a"
    group = response.broker_groups.add(broker_name="broker-a", mode=mode, epoch=epoch, leader=leader, in_sync_min=2)
    for number, state in ((0, Copy.IN_SYNC), (1, Copy.IN_SYNC), (2, third)):
        state = Copy.LEADER if number == leader else state
        group.copies.add(
            copy=number, address=f"db{number}:8083", state=state, may_lead=state != Copy.AWAY, log_end=1_000_000,
            lag_bytes=0 if number < 2 else 1_234, lag_ms=0 if number < 2 else 5_678, away_since_ms=0,
        )  # fmt: skip
    group.copies[2].away_since_ms = since_ms
    return response


def alone() -> admin_pb2.DescribeClusterResponse:
    response = admin_pb2.DescribeClusterResponse(cluster="c")
    response.brokers.add(answered=True).broker.name = "broker-a"
    group = response.broker_groups.add(broker_name="broker-a", epoch=1, leader=0, in_sync_min=1)
    group.copies.add(copy=0, address="h:8081", state=Copy.LEADER, may_lead=True, log_end=-1)
    return response


def one_line(out: str) -> str:
    return " ".join(out.split())


def test_a_group_that_is_well_says_who_leads_and_that_all_are_in_sync(run: Any) -> None:
    _, out, _, _ = run("cluster show", DescribeCluster=cluster())
    assert "broker-a sync 0 4 3 3 2 -" in one_line(out)
    assert "broker-a 1 db1:8083 in sync yes yes 0 0 1,000,000 -" in one_line(out)
    _, out, _, _ = run("cluster show --json", DescribeCluster=cluster())
    output = json.loads(out)
    assert output["broker_groups"] == [
        {
            "broker": "broker-a", "mode": "sync", "leader": 0, "epoch": 4, "copies": 3, "in_sync": 3,
            "in_sync_min": 2, "note": "",
        }
    ]  # fmt: skip
    assert output["copies"][2] == {
        "broker": "broker-a", "copy": 2, "address": "db2:8083", "state": "in sync", "in_sync": True, "may_lead": True,
        "lag_bytes": 1_234, "lag_ms": 5_678, "log_end": 1_000_000, "away_since_ms": 0,
    }  # fmt: skip


def test_a_dead_copy_is_away_since_a_time_and_the_next_loss_is_warned_of(run: Any) -> None:
    answer = cluster(third=Copy.AWAY, since_ms=1_700_000_000_000)
    _, out, _, _ = run("cluster show", DescribeCluster=answer)
    assert "away no no 1,234 5,678 1,000,000 2023-11-1" in one_line(out)
    assert "not in sync: copy 2; if one more is lost, no writes are accepted" in one_line(out)


def test_below_the_minimum_it_says_that_nothing_is_taken(run: Any) -> None:
    answer = cluster(third=Copy.AWAY, since_ms=5)
    answer.broker_groups[0].copies[1].state = Copy.AWAY
    _, out, _, _ = run("cluster show --json", DescribeCluster=answer)
    note = json.loads(out)["broker_groups"][0]["note"]
    assert note == "not in sync: copy 1, copy 2; no writes are accepted until 2 are in sync"


def test_one_copy_says_so_and_has_no_table_of_copies(run: Any) -> None:
    _, out, _, _ = run("cluster show", DescribeCluster=alone())
    assert "one copy: its data are on one disk only" in one_line(out)
    assert "address for copies" not in out
    _, out, _, _ = run("cluster show --json", DescribeCluster=alone())
    output = json.loads(out)
    assert (output["broker_groups"][0]["mode"], output["copies"]) == ("one copy", [])


def test_a_copy_asked_at_its_own_address_tells_of_a_group_that_nobody_leads(run: Any) -> None:
    answer = cluster(leader=-1, third=Copy.AWAY, since_ms=5)
    del answer.brokers[:]
    answer.broker_groups[0].copies[0].log_end = -1
    _, out, _, _ = run("cluster show", DescribeCluster=answer)
    assert "no leader; copies that may lead: 0, 1; not in sync: copy 2" in one_line(out)
    assert "missing since" not in out, "of brokers it knows nothing"
    _, out, _, _ = run("cluster show --json", DescribeCluster=answer)
    output = json.loads(out)
    assert set(output) == {"cluster", "broker_groups", "copies"}
    assert output["broker_groups"][0]["leader"] is None
    assert output["copies"][0]["log_end"] is None


def test_an_elected_leader_that_does_not_serve_yet_is_told_apart(run: Any) -> None:
    answer = cluster()
    answer.broker_groups[0].copies[0].state = Copy.STARTING
    _, out, _, _ = run("cluster show --json", DescribeCluster=answer)
    assert json.loads(out)["broker_groups"][0]["note"] == "the leader does not serve yet"


def test_move_leader_says_who_led_and_who_leads(run: Any) -> None:
    moved = admin_pb2.MoveLeaderResponse(leader=2, epoch=5)
    code, out, _, calls = run(
        "broker move-leader broker-a --to 2", DescribeCluster=[cluster(), cluster(leader=2, epoch=5)], MoveLeader=moved
    )
    assert code == 0
    assert "Copy 2 of broker group broker-a leads epoch 5, copy 0 led before; it serves clients after" in one_line(out)
    request = admin_pb2.MoveLeaderRequest.FromString(dict(calls)["MoveLeader"])
    assert (request.broker_name, request.to, request.epoch) == ("broker-a", 2, 4)


def test_move_leader_without_a_copy_lets_the_leader_choose(run: Any) -> None:
    moved = admin_pb2.MoveLeaderResponse(leader=1, epoch=5)
    _, out, _, calls = run(
        "broker move-leader broker-a --json", DescribeCluster=[cluster(), cluster(leader=1, epoch=5)], MoveLeader=moved
    )
    assert not admin_pb2.MoveLeaderRequest.FromString(dict(calls)["MoveLeader"]).HasField("to")
    output = json.loads(out)
    assert (output["before"], output["leader"], output["epoch"], output["served"]) == (0, 1, 5, True)


def test_move_leader_to_the_leader_changes_nothing_and_is_no_error(run: Any) -> None:
    same = admin_pb2.MoveLeaderResponse(leader=0, epoch=4)
    code, out, _, _ = run("broker move-leader broker-a --to 0", DescribeCluster=cluster(), MoveLeader=same)
    assert (code, one_line(out)) == (0, "Copy 0 of broker group broker-a is already the leader, in epoch 4.")


@pytest.mark.parametrize(
    ("error", "exit_code", "text"),
    [
        (NotFound("no broker group is named 'broker-a'; the cluster has broker-b"), 3, "the cluster has broker-b"),
        (PreconditionFailed("copy 2 of broker group broker-a is not in sync"), 4, "copy 2 of broker group broker-a"),
    ],
)
def test_what_the_server_refuses_is_one_line_and_an_exit_code(
    run: Any, error: Exception, exit_code: int, text: str
) -> None:
    code, out, err, _ = run("broker move-leader broker-a --to 2", DescribeCluster=cluster(), MoveLeader=error)
    assert (code, out) == (exit_code, "")
    assert text in err
    assert err.count("\n") == 1


def test_where_nobody_answers_it_says_how_to_ask_a_copy(run: Any) -> None:
    code, _, err, _ = run("cluster show", DescribeCluster=ConnectionFailed("no server answers"))
    assert code == 5
    assert "no server answers" in err
    assert "call one of its copies at its address in replication.members" in err


def test_a_copy_is_a_number(run: Any, capsys: pytest.CaptureFixture[str]) -> None:
    for wrong in ("-1", "two"):
        with pytest.raises(SystemExit) as ended:
            run(f"broker move-leader broker-a --to {wrong}")
        assert ended.value.code == 2
        assert "--to" in capsys.readouterr().err


def changed(**fields: Any) -> admin_pb2.ChangeCopiesResponse:
    return admin_pb2.ChangeCopiesResponse(group=cluster(**fields).broker_groups[0])


def request_of(asked: Any) -> admin_pb2.ChangeCopiesRequest:
    return admin_pb2.ChangeCopiesRequest.FromString(dict(asked)["ChangeCopies"])


def test_add_replica_says_what_is_left_to_do(run: Any) -> None:
    code, out, _, calls = run("broker add-replica broker-a --copy 2 --at db2:8083", ChangeCopies=changed())
    assert code == 0
    assert "Broker group broker-a has a copy 2 at db2:8083. It counts once it is in sync" in one_line(out)
    request = request_of(calls)
    assert (request.broker_name, request.add.copy, request.add.address) == ("broker-a", 2, "db2:8083")


def test_remove_replica_lets_another_copy_lead_first_if_it_leads(run: Any) -> None:
    seen = [cluster(), cluster(), cluster(leader=1, epoch=5)]
    moved = admin_pb2.MoveLeaderResponse(leader=1, epoch=5)
    code, out, _, calls = run(
        "broker remove-replica broker-a --copy 0 --json", DescribeCluster=seen, MoveLeader=moved, ChangeCopies=changed()
    )
    assert code == 0
    assert json.loads(out)["copies"] == "0, 1, 2"
    names = [name for name, _ in calls if name != "DescribeCluster"]
    assert names == ["MoveLeader", "ChangeCopies"]
    assert request_of(calls).remove == 0
    _, out, _, calls = run("broker remove-replica broker-a --copy 2", DescribeCluster=cluster(), ChangeCopies=changed())
    assert "It may be added again, with its folder or an empty one" in one_line(out)
    assert [name for name, _ in calls if name != "DescribeCluster"] == ["ChangeCopies"]


def test_a_replacement_is_removed_only_when_the_new_copy_is_in_sync(run: Any) -> None:
    late = changed(third=Copy.CATCHING_UP)
    seen = [cluster(third=Copy.CATCHING_UP), cluster(), cluster()]
    code, out, _, calls = run(
        "broker replace broker-a --copy 1 --by 2 --at db2:8083", DescribeCluster=seen, ChangeCopies=[late, changed()]
    )
    assert code == 0
    assert "Copy 2 is in sync, and copy 1 was removed from broker group broker-a" in one_line(out)
    assert "The group now has copies 0, 1, 2." in one_line(out), "as the last answer says"
    changes = [admin_pb2.ChangeCopiesRequest.FromString(data) for name, data in calls if name == "ChangeCopies"]
    assert [change.WhichOneof("change") for change in changes] == ["add", "remove"]
    code, _, err, calls = run(
        "broker replace broker-a --copy 1 --by 2 --at db2:8083 --wait 0",
        DescribeCluster=cluster(third=Copy.CATCHING_UP),
        ChangeCopies=late,
    )
    assert code == 1
    assert "copy 2 of broker group broker-a was not in sync within 0 ms, and copy 1 was not removed" in err
    code, _, err, _ = run("broker replace broker-a --copy 1 --by 1 --at db2:8083")
    assert code != 0
    assert "cannot be replaced by itself" in err


def test_set_min_in_sync(run: Any) -> None:
    code, out, _, calls = run("broker set-min-in-sync broker-a 2", ChangeCopies=changed())
    assert (code, request_of(calls).in_sync_min) == (0, 2)
    assert "accepts messages while 2 of its copies are in sync" in one_line(out)


def test_grow_adds_what_is_missing_and_raises_the_minimum_last(run: Any) -> None:
    few, whole = cluster(), cluster()
    few.broker_groups[0].in_sync_min = 1
    del few.broker_groups[0].copies[2]
    level = cluster()
    level.broker_groups[0].in_sync_min = 1
    members = "0=db0:8083,1=db1:8083,2=db2:8083"
    code, out, _, calls = run(
        f"broker grow broker-a --members {members} --min-in-sync 2",
        DescribeCluster=[few, level, whole], ChangeCopies=changed(),
    )  # fmt: skip
    assert code == 0
    assert "Copies 0, 1, 2 of broker group broker-a are in sync" in one_line(out)
    changes = [admin_pb2.ChangeCopiesRequest.FromString(data) for name, data in calls if name == "ChangeCopies"]
    assert [(one.add.copy, one.add.address, one.in_sync_min) for one in changes] == [(2, "db2:8083", 0), (0, "", 2)]


@pytest.mark.parametrize("members", ["0:db0", "0=db0:1,0=db1:1", "0=db0:1,1=db0:1"])
def test_members_that_are_none_or_named_twice_are_refused(
    run: Any, members: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        run(f"broker grow broker-a --members {members}")
    assert "--members: '" in capsys.readouterr().err


def test_a_group_that_has_more_than_it_is_to_grow_to_is_told_as_it_is(run: Any) -> None:
    three = cluster()
    three.broker_groups[0].in_sync_min = 3
    address = three.broker_groups[0].copies[1].address
    _, out, _, calls = run(
        f"broker grow broker-a --members 0={three.broker_groups[0].copies[0].address},1=typo:8083",
        DescribeCluster=three,
    )
    assert [name for name, _ in calls] == ["DescribeCluster"]
    text = one_line(out)
    assert "Copies 0, 1 of broker group broker-a are in sync, and it accepts messages while at least 3 are." in text
    assert f"Copy 1 keeps the address {address}, not typo:8083: only new copies get an address." in text
    _, out, _, _ = run("broker grow broker-a --members 0=h:1 --min-in-sync 1", DescribeCluster=three)
    assert "Copy 0 of broker group broker-a is in sync, and it accepts messages while at least 3 are." in one_line(out)


def test_an_unclean_election_is_said_for_ever(run: Any) -> None:
    answer = cluster()
    answer.broker_groups[0].unclean.add(epoch=3, copy=1, time_ms=1_600_000_000_000)
    answer.broker_groups[0].unclean.add(epoch=4, copy=2, time_ms=1_700_000_000_000)
    _, out, _, _ = run("cluster show --json", DescribeCluster=answer)
    assert json.loads(out)["broker_groups"][0]["note"] == (
        "acknowledged messages may be lost: unclean election at epoch 4 on 2023-11-14 by copy 2, and 1 before"
    )
