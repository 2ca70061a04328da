"""`evenq group explain | simulate | doctor`."""

import json

from evenq.wire.stubs.evenq.v1 import admin_pb2, assignment_pb2, common_pb2, diagnosis_pb2


def queue(number):
    return common_pb2.Queue(topic="t", broker_name="a", queue_id=number)


def explained():
    response = assignment_pb2.ExplainResponse(strategy="STICKY")
    response.generation.epoch = 2
    response.queues.add(queue=queue(0), owner="m1", state="OWNED", reason="m1 joined")
    response.queues.add(queue=queue(-1), owner="*", state="OWNED")
    response.idle.add(client_id="m2", reason="too many")
    return response


def test_explain_tells_owners_and_who_has_nothing(run):
    _, out, _, calls = run("group explain g --topic t --json", Explain=explained())
    output = json.loads(out)
    assert (output["decides"], output["generation"]) == ("the rebalancer", "2.0")
    assert [(one["queue"], one["owner"]) for one in output["queues"]] == [(0, "m1"), ("all", "every member")]
    assert output["idle"] == [{"client_id": "m2", "why": "too many"}]
    assert assignment_pb2.ExplainRequest.FromString(calls[0][1]).topic == "t"


def test_without_a_rebalancer_locks_explain(run):
    none = assignment_pb2.ExplainResponse()
    none.status.code, none.status.message = 50100, "no rebalancer"
    details = admin_pb2.DescribeGroupResponse()
    details.summary.group = "g"
    details.queues.add(queue=queue(0), owner="m1")
    _, out, _, _ = run("group explain g --json", Explain=none, DescribeGroup=details)
    output = json.loads(out)
    assert ("no rebalancer" in output["decides"], output["queues"][0]["why"]) == (True, "holds the queue's lock")


def test_simulate_compares_now_and_then(run):
    then = assignment_pb2.SimulateResponse(moves=1, queues_per_member_min=1, queues_per_member_max=2)
    then.queues.add(queue=queue(0), owner="m2", previous_owner="m1")
    then.queues.add(queue=queue(1), owner="", previous_owner="m1")
    line = "group simulate g --members 3 --rows --json"
    _, out, _, calls = run(line, Explain=explained(), Simulate=then)
    output = json.loads(out)
    assert (output["strategy"], output["members"]) == ("STICKY", 3)
    row = output["topics"][0]
    assert (row["moves"], row["unowned"], row["spread_now"], row["spread_then"]) == (1, 1, "0 to 1", "1 to 2")
    assert [(one["from"], one["to"]) for one in output["moves"]] == [("m1", "m2"), ("m1", "nobody")]
    code, _, err, calls = run("group simulate g")
    assert (code, calls, "--members N" in err) == (2, [], True)


def test_doctor_says_by_its_exit_code_whether_something_is_wrong(run):
    healthy = diagnosis_pb2.DiagnoseGroupResponse(decides="x", members=1, queues=2, brokers=["a"])
    code, out, _, _ = run("group doctor g", DiagnoseGroup=healthy)
    assert (code, "no findings" in out) == (0, True)
    sick = diagnosis_pb2.DiagnoseGroupResponse(members=1, queues=2, brokers=["a"])
    sick.findings.add(kind="TWO_OWNERS", severity="ERROR", subject="t a/0", seen="seen", fix="fix", command="evenq x")
    code, out, _, calls = run("group doctor g --json", DiagnoseGroup=sick)
    assert (code, json.loads(out)["findings"][0]["command"]) == (1, "evenq x")
    assert diagnosis_pb2.DiagnoseGroupRequest.FromString(calls[0][1]).group == "g"


def test_doctor_prints_each_part_of_a_finding_on_a_line_and_escapes_what_others_wrote(run):
    sick = diagnosis_pb2.DiagnoseGroupResponse(members=1, queues=1, brokers=["a", "b"], decides="x decides")
    sick.findings.add(kind="STUCK", severity="ERROR", subject="t a/0", seen="m\n1", fix="restart it", command="evenq x")
    _, out, _, _ = run("group doctor g", DiagnoseGroup=sick)
    assert out.splitlines() == [
        "g: 1 finding, 1 member and 1 queue at a, b; x decides",
        "",
        "ERROR STUCK t a/0",
        r"  m\n1",
        "  restart it:",
        "    evenq x",
    ]


def test_doctor_names_no_owner_of_the_queues_of_a_group_without_members(run):
    empty = diagnosis_pb2.DiagnoseGroupResponse(queues=8, brokers=["a"], decides="the rebalancer gives all to each")
    _, out, _, _ = run("group doctor g", DiagnoseGroup=empty)
    assert out == "g: no findings, 8 queues at a; no member is connected\n"
