"""One rule for all commands: a broker that belongs to the cluster and was not reached is named, and the exit code is 1."""

from __future__ import annotations

import json

import pytest

from evenq.errors import ConnectionFailed, Forbidden
from evenq.wire.status import status_of
from evenq.wire.stubs.evenq.v1 import admin_pb2, common_pb2, dead_letters_pb2

GONE = admin_pb2.ListBrokersResponse(missing=[admin_pb2.MissingBroker(name="broker-c", gone_ms=1)])

UNDONE = ConnectionFailed("deleted here, but not on every broker (broker-c: it is missing)")


def queue(broker, number=0):
    return common_pb2.Queue(topic="t", broker_name=broker, queue_id=number)


def created():
    response = admin_pb2.CreateTopicResponse()
    response.placements.add(broker_name="a").entry.write_queues = 8
    return response


def described():
    response = admin_pb2.DescribeTopicResponse()
    response.queues.add(queue=queue("a"))
    return response


def resized():
    resized = admin_pb2.ResizedTopic(broker_name="a")
    resized.entry.name, resized.entry.write_queues, resized.entry.read_queues = "t", 8, 8
    resized.entry.permission = 3
    return resized


def moved():
    response = admin_pb2.ResetOffsetsResponse(group_known=True)
    response.moves.add(queue=queue("a"), before=1, after=0)
    response.moves.add(queue=queue("broker-c", -1), before=-1, after=-1, error="it is missing")
    return response


COMMANDS = {
    "topic create t": {"CreateTopic": created()},
    "topic list": {"ListTopics": admin_pb2.ListTopicsResponse()},
    "topic show t": {"DescribeTopic": described()},
    "topic scale t --queues 8": {"ScaleTopic": admin_pb2.ScaleTopicResponse(brokers=[resized()])},
    "topic permit t read": {"PermitTopic": admin_pb2.PermitTopicResponse(brokers=[resized()])},
    "topic delete t --yes": {"DeleteTopic": admin_pb2.DeleteTopicResponse(status=status_of(UNDONE))},
    "group delete g --yes": {"DeleteGroup": admin_pb2.DeleteGroupResponse(status=status_of(UNDONE))},
    "group list": {"ListGroups": admin_pb2.ListGroupsResponse(groups=[admin_pb2.GroupSummary(silent=["broker-c"])])},
    "offset reset g --topic t --to earliest --yes": {"ResetOffsets": moved()},
    "message tail t": {"FindMessages": admin_pb2.FindMessagesResponse(silent=["broker-c"])},
    "message find t": {"FindMessages": admin_pb2.FindMessagesResponse(silent=["broker-c"])},
    "client list": {"ListClients": admin_pb2.ListClientsResponse(silent=["broker-c"])},
    "dlq list": {"List": dead_letters_pb2.ListDeadLettersResponse(silent=["broker-c"])},
    "dlq replay g --yes": {
        "Replay": [
            dead_letters_pb2.ReplayProgress(broker_name="a", replayed=39, done=True),
            dead_letters_pb2.ReplayProgress(broker_name="broker-c", error="it is missing", done=True),
        ]
    },
}


@pytest.mark.parametrize("line", COMMANDS)
def test_a_missing_broker_is_named_and_the_exit_code_is_1(run, line):
    code, out, err, _ = run(line, ListBrokers=GONE, **COMMANDS[line])
    assert code == 1
    assert "broker-c" in out + err


@pytest.mark.parametrize("line", ["topic create t", "topic list", "topic show t"])
def test_what_was_done_is_printed_all_the_same(run, line):
    code, out, err, _ = run(f"{line} --json", ListBrokers=GONE, **COMMANDS[line])
    assert (code, "broker-c" in err) == (1, True)
    json.loads(out)


@pytest.mark.parametrize("line", ["topic create t", "topic list", "topic scale t --queues 8"])
def test_with_all_brokers_there_or_for_a_caller_that_may_not_look_nothing_is_said(run, line):
    for brokers in (admin_pb2.ListBrokersResponse(), Forbidden("not you")):
        code, _, err, _ = run(line, ListBrokers=brokers, **COMMANDS[line])
        assert (code, err) == (0, "")
