"""Options: what is read, and what is said when they are wrong."""

import pickle
import re
from pathlib import Path

import pytest
from pyspark_evenq.options.member import AssignmentMode, OnBusy, OnConflict
from pyspark_evenq.options.offsets import OffsetSpec, Place
from pyspark_evenq.options.source import Format, ReadOptions, SchemaStyle

from evenq.errors import SettingsError
from evenq.model.queue import MessageQueue
from evenq.wire.credentials import Credentials
from evenq.wire.tls import Tls

LEAST = {"endpoints": "127.0.0.1:8081", "subscribe": "flights", "group": "g"}


def test_names_are_known_in_any_case_and_by_their_aliases() -> None:
    parsed = ReadOptions.parse(
        {"ENDPOINTS": "a:1, b:2", "topic": "x,y", "Group": "g", "maxRowsPerTrigger": "7"}, streaming=True
    )
    assert parsed.endpoints == ("a:1", "b:2")
    assert parsed.topics == ("x", "y")
    assert parsed.limits.offsets_max == 7


def test_the_format_is_known_in_any_case() -> None:
    assert ReadOptions.parse(LEAST | {"format": "Message"}, streaming=True).format is Format.MESSAGE
    assert ReadOptions.parse(LEAST | {"tags": "a"}, streaming=True).format is Format.AUTO


def test_an_unknown_name_is_refused_with_the_nearest_known_one() -> None:
    with pytest.raises(SettingsError, match=r"'maxOffsetPerTriger'.*maxOffsetsPerTrigger"):
        ReadOptions.parse(LEAST | {"maxOffsetPerTriger": "7"}, streaming=True)


def test_one_option_under_two_names_is_refused() -> None:
    with pytest.raises(SettingsError, match="twice"):
        ReadOptions.parse(LEAST | {"topic": "other"}, streaming=True)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"endpoints": ""}, "endpoints is missing"),
        ({"endpoints": "host"}, "'host' is not host:port"),
        ({"endpoints": "host:99999"}, "port of 1 to 65535"),
        ({"subscribe": "no spaces"}, "holds a character"),
        ({"group": "a b"}, "holds a character"),
        ({"maxOffsetsPerTrigger": "many"}, "'many'"),
        ({"minPartitions": "-1"}, "is -1"),
        ({"blockBytes": "1"}, "1024..16777216"),
        ({"failOnDataLoss": "maybe"}, "'maybe'"),
        ({"format": "arrow"}, "give one of: auto, log, message"),
        ({"format": "log", "tags": "a"}, "does not go with filters"),
        ({"startingOffsets": "yesterday"}, "'yesterday'"),
        ({"startingOffsets": '{"flights": 3}'}, "does not parse"),
        ({"startingOffsets": '{"flights": {"broker-a": {"0": -3}}}'}, "offset of flights@broker-a:0 is -3"),
        ({"startingOffsets": '{"flights": {"broker-a": {"0": true}}}'}, "is True"),
        ({"endingOffsets": "earliest"}, "give latest"),
        ({"endingOffsets": '{"flights": {"broker-a": {"0": -2}}}'}, "-2 (earliest) is not an end"),
        ({"endingTimestamp": "soon"}, "'soon'"),
        ({"startingOffsetsByTimestamp": '{"flights": {"0": 5}}'}, "does not parse"),
        ({"startingTimestamp": "-1"}, "is '-1'; give ms since the epoch, a whole number of 0 or more"),
        ({"startingOffsetsByTimestamp": '{"flights": {"broker-a": {"0": -1}}}'}, "time of flights@broker-a:0 is -1"),
        ({"startingOffsetsByTimestamp": '{"flights": "earliest"}'}, "topic 'flights' is 'earliest', not an object"),
        (
            {"startingOffsets": '{"flights": "newest"}'},
            """'newest', not an object; give an object {"topic": {"broker""",
        ),
        ({"startingOffsets": '{"flights": "newest"}'}, """or -1 (latest), or {"topic": "earliest"}"""),
        (
            {"startingOffsets": '{"flights": {"broker-a": "latest"}}'},
            "broker 'broker-a' of topic 'flights' is 'latest'",
        ),
        ({"startingOffsets": '{"flights": {"broker-a": {"x": 1}}}'}, "topic 'flights' is 'x', not a number"),
        ({"startingOffsets": "{"}, "does not parse (Expecting"),
        ({"endingOffsets": '{"flights": "earliest"}'}, "-2 (earliest) is not an end"),
        ({"subscribe": "", "assign": '["flights"]'}, "the value is ['flights'], not an object"),
        ({"startingOffsetsByTimestampStrategy": "nearest"}, "give error or latest"),
        ({"subscribePattern": "flights-.*"}, "subscribe and subscribePattern are given"),
        ({"subscribe": "", "subscribePattern": "flights("}, "not a regular expression"),
        ({"subscribe": "", "assign": '{"flights": [0, 1]}'}, "assign does not parse"),
        ({"subscribe": "", "assign": '{"flights": {"broker-a": ["0"]}}'}, "topic 'flights' is '0', not a number"),
        ({"subscribe": "", "assign": "{}"}, "names no queue"),
        ({"maxTriggerDelay": "soon"}, "give a duration"),
        ({"minOffsetsPerTrigger": "8", "maxOffsetsPerTrigger": "7"}, "make it smaller"),
        ({"includeRetry": "true", "group": ""}, "give group"),
        ({"tags": "a", "sqlFilter": "x = 1"}, "both given"),
        ({"schemaStyle": "pulsar"}, "give one of: evenq, kafka"),
        ({"schemaStyle": "kafka", "includeSystem": "true"}, "leave out schemaStyle=kafka"),
        ({"groupIdPrefix": "a b"}, "holds a character"),
        ({"kafka.security.protocol": "SASL_SSL"}, "give tls=true"),
        ({"kafka.sasl.jaas.config": "x"}, "give accessKey"),
        ({"kafka.linger.ms": "5"}, "Kafka's own client"),
        ({"fetchOffset.numRetries": "5"}, "give readTimeoutMs"),
        ({"payload": "5"}, "docs/guides/spark.md lists all of them"),
    ],
)
def test_a_wrong_value_is_named_with_what_would_be_right(changes: dict[str, str], text: str) -> None:
    with pytest.raises(SettingsError, match=re.escape(text)):
        ReadOptions.parse(LEAST | changes, streaming=False)


def test_a_stream_needs_a_group_and_takes_no_end() -> None:
    with pytest.raises(SettingsError, match="group is missing"):
        ReadOptions.parse({"endpoints": "a:1", "subscribe": "x"}, streaming=True)
    with pytest.raises(SettingsError, match="endingOffsets is for batch"):
        ReadOptions.parse(LEAST | {"endingOffsets": "latest"}, streaming=True)


def test_streams_start_at_the_group_and_batches_at_the_earliest() -> None:
    stream, batch = (ReadOptions.parse(LEAST, streaming=streaming) for streaming in (True, False))
    assert stream.starting is not None
    assert stream.starting.place is Place.GROUP
    assert batch.starting is not None
    assert batch.starting.place is Place.EARLIEST
    assert (stream.min_records_per_partition, batch.min_records_per_partition) == (2_000, 0)


def test_offsets_as_json_name_queues() -> None:
    parsed = ReadOptions.parse(LEAST | {"startingOffsets": '{"flights": {"broker-a": {"3": 17}}}'}, streaming=False)
    assert parsed.starting is not None
    assert parsed.starting.offsets == {MessageQueue("flights", "broker-a", 3): 17}
    assert parsed.starting.place is Place.EARLIEST


def test_keys_come_from_options_a_file_or_the_environment_of_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("EVENQ_ACCESS_KEY", "EVENQ_SECRET_KEY", "EVENQ_CREDENTIALS"):
        monkeypatch.delenv(variable, raising=False)
    assert ReadOptions.parse(LEAST, streaming=False).credentials() is None
    given = ReadOptions.parse(LEAST | {"accessKey": "spark", "secretKey": "s3cret-key"}, streaming=False)
    assert given.credentials() == Credentials(access_key="spark", secret_key="s3cret-key")
    assert "s3cret" not in repr(given)
    file = tmp_path / "keys.toml"
    file.write_text('access_key = "filed"\nsecret_key = "s3cret-key"\n')
    parsed = ReadOptions.parse(LEAST | {"credentialsFile": str(file)}, streaming=False)
    assert b"s3cret" not in pickle.dumps(parsed)  # only the path travels to the workers
    assert parsed.credentials() == Credentials(access_key="filed", secret_key="s3cret-key")
    monkeypatch.setenv("EVENQ_ACCESS_KEY", "worker")
    monkeypatch.setenv("EVENQ_SECRET_KEY", "of-the-worker")
    assert ReadOptions.parse(LEAST, streaming=False).credentials() == Credentials(
        access_key="worker", secret_key="of-the-worker"
    )


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"accessKey": "spark"}, "belong together"),
        ({"secretKey": "s3cret-key"}, "belong together"),
        ({"accessKey": "a b", "secretKey": "s3cret-key"}, "access_key 'a b'"),
        ({"accessKey": "a", "secretKey": "s3cret-key", "credentialsFile": "/x"}, "leave one out"),
    ],
)
def test_wrong_keys_are_refused_without_telling_the_secret(changes: dict[str, str], text: str) -> None:
    with pytest.raises(SettingsError, match=text) as refused:
        ReadOptions.parse(LEAST | changes, streaming=False)
    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize(
    ("changes", "tls"),
    [
        ({}, None),
        ({"tls": "true"}, Tls()),
        ({"endpoints": "evenqs://a:1,b:2"}, Tls()),
        ({"tlsCa": "ca.pem", "TLSSERVERNAME": "b.example"}, Tls(ca="ca.pem", server_name="b.example")),
        ({"tlsCertificate": "c.pem", "tlsKey": "k.pem"}, Tls(certificate="c.pem", key="k.pem")),
        ({"tlsInsecure": "true"}, Tls(insecure=True)),
        ({"endpoints": "evenq://a:1", "tls": "false"}, None),
    ],
)
def test_tls_is_said_by_options_or_by_the_scheme(changes: dict[str, str], tls: Tls | None) -> None:
    options = ReadOptions.parse({"endpoints": "a:1", "subscribe": "t", **changes}, streaming=False)
    assert options.tls() == tls
    assert all("://" not in endpoint for endpoint in options.endpoints)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"endpoints": "evenq://a:1", "tlsCa": "ca.pem"}, "contradict each other"),
        ({"endpoints": "evenqs://a:1", "tls": "false"}, "contradict each other"),
        ({"tls": "false", "tlsCa": "ca.pem"}, "contradict each other"),
        ({"tlsKey": "k.pem"}, "certificate is empty"),
        ({"endpoints": "evenq://a:1;evenqs://b:1"}, "option endpoints: .*mixes"),
    ],
)
def test_tls_that_contradicts_itself_is_refused(changes: dict[str, str], text: str) -> None:
    with pytest.raises(SettingsError, match=text):
        ReadOptions.parse({"endpoints": "a:1", "subscribe": "t", **changes}, streaming=False)


def test_a_stream_is_told_how_it_meets_others_and_a_batch_read_is_no_member() -> None:
    plain = ReadOptions.parse(LEAST, streaming=True).membership
    assert (plain.on_busy, plain.on_conflict, plain.query_name) == (OnBusy.FAIL, OnConflict.CHECKPOINT, "")
    given = {"onGroupBusy": "TakeOver", "onOffsetConflict": "broker", "queryName": " nightly "}
    given["checkpointLocation"] = " s3a://jobs/delays "
    result = ReadOptions.parse(LEAST | given, streaming=True).membership
    assert (plain.checkpoint, result.checkpoint) == ("", "s3a://jobs/delays")
    assert (result.on_busy, result.on_conflict, result.query_name) == (OnBusy.TAKEOVER, OnConflict.BROKER, "nightly")
    with pytest.raises(SettingsError, match=r"onGroupBusy is 'maybe'; give one of: fail, wait, takeover"):
        ReadOptions.parse(LEAST | {"onGroupBusy": "maybe"}, streaming=True)
    nameless = {"endpoints": "a:1", "subscribe": "flights", "schemaStyle": "kafka"}
    for name, value in given.items():
        with pytest.raises(SettingsError, match=f"{name} is for streams"):
            ReadOptions.parse(LEAST | {name: value}, streaming=False)
        with pytest.raises(SettingsError, match=f"{name} is for members of a group"):
            ReadOptions.parse(nameless | {name: value}, streaming=True)


def test_a_shared_stream_has_a_weight_and_leaves_out_what_is_for_all_queues() -> None:
    shared = LEAST | {"assignment": "shared"}
    plain = ReadOptions.parse(LEAST, streaming=True).membership
    assert (plain.assignment, plain.weight, plain.follows_resets) == (AssignmentMode.EXCLUSIVE, 1.0, True)
    result = ReadOptions.parse(shared | {"memberWeight": "2.5", "honorOffsetReset": "false"}, streaming=True).membership
    assert (result.assignment, result.weight, result.follows_resets) == (AssignmentMode.SHARED, 2.5, False)
    for wrong in ("0", "-1", "nan", "heavy", "1e9"):
        with pytest.raises(SettingsError, match=r"memberWeight is .*; give a number above 0 and up to 1e\+06"):
            ReadOptions.parse(shared | {"memberWeight": wrong}, streaming=True)
    with pytest.raises(SettingsError, match="memberWeight does not go with assignment=exclusive: the stream reads all"):
        ReadOptions.parse(LEAST | {"memberWeight": "2"}, streaming=True)
    with pytest.raises(SettingsError, match="onGroupBusy does not go with assignment=shared: other members"):
        ReadOptions.parse(shared | {"onGroupBusy": "wait"}, streaming=True)
    assigned = {name: value for name, value in shared.items() if name != "subscribe"}
    with pytest.raises(SettingsError, match="assign does not go with assignment=shared"):
        ReadOptions.parse(assigned | {"assign": '{"flights": {"broker-a": [0]}}'}, streaming=True)


def test_a_job_of_kafkas_source_needs_another_format_and_address_only() -> None:
    moved = {"kafka.bootstrap.servers": "a:1,b:2", "subscribe": "flights"}
    stream = ReadOptions.parse(moved | {"kafka.group.id": "g"}, streaming=True)
    assert (stream.endpoints, stream.group, stream.schema_style) == (("a:1", "b:2"), "g", SchemaStyle.KAFKA)
    nameless = ReadOptions.parse(moved, streaming=True)
    assert nameless.starting == OffsetSpec(place=Place.LATEST)
    timed = ReadOptions.parse(moved | {"startingTimestamp": "5"}, streaming=True)
    assert timed.starting is not None
    assert timed.starting.must_match
    ours = ReadOptions.parse(moved | {"SCHEMASTYLE": "evenq"}, streaming=False)
    assert ours.schema_style is SchemaStyle.EVENQ


def test_times_win_over_offsets_and_one_time_over_all() -> None:
    queue = MessageQueue("flights", "broker-a", 3)
    offsets, by_queue = '{"flights": {"broker-a": {"3": 17}}}', '{"flights": {"broker-a": {"3": 1000}}}'
    for side in ("starting", "ending"):
        given = LEAST | {f"{side}Offsets": offsets, f"{side}OffsetsByTimestamp": by_queue}
        parsed = getattr(ReadOptions.parse(given, streaming=False), side)
        assert (parsed.times, parsed.offsets) == ({queue: 1000}, {})
        parsed = getattr(ReadOptions.parse(given | {f"{side}Timestamp": "2000"}, streaming=False), side)
        assert (parsed.time_ms, parsed.times) == (2000, {})


def test_a_word_in_the_json_is_for_a_whole_topic_as_in_kafkas_source() -> None:
    given = LEAST | {"startingOffsets": '{"flights": "Earliest", "late": {"broker-a": {"3": 17}}}'}
    parsed = ReadOptions.parse(given | {"endingOffsets": '{"flights": "latest"}'}, streaming=False)
    assert parsed.starting is not None
    assert parsed.ending is not None
    queue, late = MessageQueue("flights", "broker-a", 3), MessageQueue("late", "broker-a", 3)
    assert (parsed.starting.offset_of(queue), parsed.starting.offset_of(late)) == (-2, 17)
    assert (parsed.ending.offset_of(queue), parsed.ending.offset_of(late)) == (-1, None)


def test_the_time_0_is_a_time_and_not_none() -> None:
    """12c: a stream began at the end by it, and a batch read all where it should end at once."""
    for side in ("starting", "ending"):
        given = LEAST | {f"{side}Offsets": "latest", f"{side}Timestamp": "0"}
        assert getattr(ReadOptions.parse(given, streaming=False), side).time_ms == 1
        by_queue = {f"{side}OffsetsByTimestamp": '{"flights": {"broker-a": {"3": 0}}}'}
        parsed = getattr(ReadOptions.parse(LEAST | by_queue, streaming=False), side)
        assert parsed.time_of(MessageQueue("flights", "broker-a", 3)) == 1


@pytest.mark.parametrize(
    ("text", "ms"), [("7", 7), ("500ms", 500), ("30s", 30_000), ("15m", 900_000), ("2 h", 7_200_000)]
)
def test_a_delay_is_a_duration_as_in_spark(text: str, ms: int) -> None:
    assert ReadOptions.parse(LEAST | {"maxTriggerDelay": text}, streaming=True).limits.delay_ms == ms


def test_queues_are_assigned_by_topic_and_broker() -> None:
    given = {"endpoints": "a:1", "assign": '{"y": {"broker-b": [1, 0]}, "x": {"broker-a": [2]}}'}
    parsed = ReadOptions.parse(given, streaming=False)
    assert parsed.topics == ("x", "y")
    assert parsed.assigned == (
        MessageQueue("x", "broker-a", 2), MessageQueue("y", "broker-b", 0), MessageQueue("y", "broker-b", 1),
    )  # fmt: skip


def test_a_stream_without_a_group_has_a_prefix_or_comes_from_kafka() -> None:
    given = {"endpoints": "a:1", "subscribe": "flights"}
    for more in ({"groupIdPrefix": "nightly"}, {"schemaStyle": "kafka"}):
        parsed = ReadOptions.parse(given | more, streaming=True)
        assert (parsed.group, parsed.group_id_prefix) == ("", more.get("groupIdPrefix", ""))
        assert parsed.starting == OffsetSpec(place=Place.LATEST)
    with pytest.raises(SettingsError, match="needs the option group"):
        ReadOptions.parse(given | {"groupIdPrefix": "nightly", "startingOffsets": "group"}, streaming=True)


def test_other_copies_are_read_only_if_that_is_said_and_they_can_be_reached() -> None:
    given = {"endpoints": "127.0.0.1:1", "subscribe": "flights"}
    assert not ReadOptions.parse(given, streaming=False).any_copy
    assert ReadOptions.parse(given | {"readFrom": "ANY"}, streaming=False).any_copy
    assert not ReadOptions.parse(given | {"readFrom": "leader"}, streaming=False).any_copy
    with pytest.raises(SettingsError, match="readFrom is 'master'; give one of: leader, any"):
        ReadOptions.parse(given | {"readFrom": "master"}, streaming=False)
    with pytest.raises(SettingsError, match="readFrom=any does not go with endpoints that name one address"):
        ReadOptions.parse(given | {"endpoints": "127.0.0.1:1?one-address", "readFrom": "any"}, streaming=False)
