"""`evenq group create | list | show | delete`."""

import json

from evenq.wire.stubs.evenq.v1 import admin_pb2, common_pb2, groups_pb2

GROUPS = admin_pb2.ListGroupsResponse()
GROUPS.groups.add(group="billing", max_attempts=5, lag=3, balance=groups_pb2.BalancePolicy(moves_max=7))


def details():
    response = admin_pb2.DescribeGroupResponse()
    response.summary.group, response.summary.strategy = "billing", "STICKY"
    response.summary.retry.kind, response.summary.retry.delays_ms[:] = "CUSTOMIZED", [1_000, 60_000]
    member = response.members.add(client_id="m1", language="PYTHON", protocol="evenq")
    member.subscriptions.add(topic="b").filter.expression = "new"
    sql = member.subscriptions.add(topic="a")
    sql.filter.type, sql.filter.expression = common_pb2.Filter.SQL, "x > 1"
    for number in (1, 0):
        response.queues.add(queue=common_pb2.Queue(topic="a", broker_name="x", queue_id=number), lag=number, owner="m1")
    differing = response.differing_filters.add(topic="b")
    differing.filters.add(client_ids=["m1"]).filter.expression = "new"
    differing.filters.add(client_ids=["m2"])
    return response


def test_create_says_only_what_was_said_and_shows_what_is(run):
    line = "group create billing --max-attempts 5 --strategy STICKY --from first --hold 30s --retry-delays 1s"
    code, out, err, calls = run(
        f"{line} --json", ListGroups=GROUPS, CreateGroup=admin_pb2.CreateGroupResponse(), DescribeGroup=details()
    )
    request = admin_pb2.CreateGroupRequest.FromString(dict(calls)["CreateGroup"])
    assert (request.max_attempts, request.strategy, request.start_from) == (5, "STICKY", "FIRST")
    assert not request.HasField("ordered")
    assert (request.balance.moves_max, request.balance.hold_ms) == (7, 30_000), "what it had stays"
    assert list(request.retry.delays_ms) == [1_000]
    assert (code, err, json.loads(out)["retry"]) == (0, "", "1s 1m")


def test_a_warning_is_for_people_on_standard_error(run):
    warned = admin_pb2.CreateGroupResponse(warnings=["MACHINE_ROOM divides the queues of machine rooms"])
    code, out, err, _ = run(
        "group create billing --strategy MACHINE_ROOM --json",
        ListGroups=GROUPS, CreateGroup=warned, DescribeGroup=details(),
    )  # fmt: skip
    assert (code, "warning: MACHINE_ROOM divides" in err) == (0, True)
    assert json.loads(out)["group"] == "billing"


def test_numbers_out_of_range_are_refused_before_anything_is_asked_for(run):
    code, _, err, calls = run("group create billing --retry-delays 8d", ListGroups=GROUPS)
    assert (code, [name for name, _ in calls]) == (2, ["ListGroups"])
    assert "7 days" in err


def test_show_tells_members_filters_and_queues_in_order(run):
    code, out, _, _ = run("group show billing --json", DescribeGroup=details())
    output = json.loads(out)
    assert (code, output["strategy"], output["retry"]) == (0, "STICKY", "1s 1m")
    assert (output["members"][0]["topics"], output["members"][0]["filters"]) == ("a, b", "SQL x > 1, new")
    assert [one["queue"] for one in output["queues"]] == [0, 1]
    assert [(one["filter"], one["members"]) for one in output["differing_filters"]] == [("new", "m1"), ("*", "m2")]


def test_show_prints_the_tables_first_and_only_what_is_not_zero(run):
    response = details()
    del response.differing_filters[:]
    response.summary.max_attempts, response.troubles.dead_letters = 17, 2  # 2 is printed, a 0 is not
    for number in range(2, 8):
        response.queues.add(queue=common_pb2.Queue(topic="a", broker_name="x", queue_id=number), owner="m1")
    for name in ("m2", "m3"):
        response.members.add(client_id=name, language="PYTHON")
    _, out, _, _ = run("group show billing", DescribeGroup=response)
    lines = out.splitlines()
    assert lines[0].startswith("Members")
    last_queue = max(number for number, line in enumerate(lines) if "x/7" in line)
    assert last_queue < 24, "visible in a terminal of 24 lines"
    facts = [line.split("  ")[0] for line in lines[last_queue + 1 :] if line.strip()]
    assert facts == ["group", "max attempts", "strategy", "retry", "balance", "lag", "dead letters"]
    assert "filters" not in out
    _, out, _, _ = run("group show billing -o wide", DescribeGroup=response)
    assert "waiting for retry" in out


def test_the_lag_is_unknown_while_a_broker_is_silent_and_its_name_is_said(run):
    response, listed = details(), admin_pb2.ListGroupsResponse()
    response.summary.silent.append("broker-b")
    listed.groups.add(group="billing", lag=3, silent=["broker-b"])
    code, out, err, _ = run("group show billing --json", DescribeGroup=response)
    output = json.loads(out)
    assert (code, output["lag"], output["lag_at_least"], output["silent"]) == (1, None, 0, ["broker-b"])
    assert "No answer from broker-b: the result lacks the lag of groups there" in err
    _, out, _, _ = run("group show billing", DescribeGroup=response)
    facts = dict(line.rsplit("  ", 1) for line in out.splitlines() if line.startswith(("lag", "silent")))
    assert {key.strip(): value for key, value in facts.items()} == {
        "lag": "-",
        "lag at least": "0",
        "silent": "broker-b",
    }
    _, out, err, _ = run("group list --json", ListGroups=listed)
    assert (json.loads(out)[0]["lag"], json.loads(out)[0]["lag_at_least"]) == (None, 3)
    assert "broker-b" in err
    _, out, err, _ = run("offset show billing --json", DescribeGroup=response)
    assert (json.loads(out)["lag"], json.loads(out)["silent"], "broker-b" in err) == (None, ["broker-b"], True)


def test_list_and_delete(run):
    _, out, _, _ = run("group list --json", ListGroups=GROUPS)
    assert json.loads(out)[0]["group"] == "billing"
    code, _, err, calls = run("group delete billing")
    assert (code, calls, "add --yes" in err) == (1, [], True)
    code, _, _, calls = run("group delete billing --yes", DeleteGroup=admin_pb2.DeleteGroupResponse())
    assert (code, calls[0][0]) == (0, "DeleteGroup")
