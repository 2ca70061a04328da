"""The tables of options in the guides to Spark: what each means, and the test that proves it.

    python tools/gen_spark_options.py            write the tables into the guides
    python tools/gen_spark_options.py --check    write nothing; exit 1 if a table in a guide is another one

`tests/unit/tools/test_gen_spark_options.py` checks the rest: all options of ours and of Spark's Kafka source and sink
have a row, and the tests exist.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from pyspark_evenq.foreign_options import FOREIGN, FOREIGN_SINK
from pyspark_evenq.options import ALIASES
from pyspark_evenq.sink_options import WRITE_ALIASES

ROOT = Path(__file__).resolve().parents[1]
GUIDES = ROOT / "docs" / "guides"
BEGIN = "<!-- written by tools/gen_spark_options.py, do not edit -->\n"
END = "<!-- end of the options -->\n"


class Row(NamedTuple):
    """One option. `names`: the option, then its other names."""

    names: str
    default: str
    meaning: str
    test: str
    """`file::function` under tests/."""

    @property
    def options(self) -> list[str]:
        return [name.strip(" ()") for name in self.names.replace("(", ",").split(",")]


OPTIONS = "spark/test_options.py::"
UNIT = "unit/pyspark_evenq/test_options.py::"
BATCH = "spark/test_batch.py::"
STREAM = "spark/test_stream.py::"
EFFECTS = "unit/pyspark_evenq/test_option_effects.py::"

ROWS = (
    Row(
        "endpoints (nameServer, kafka.bootstrap.servers)",
        "required",
        "brokers to ask for the route, `host:port,...`; `evenqs://host:port` for TLS. Under Kafka's name, schemaStyle "
        "is `kafka` unless given",
        "spark/test_kafka_job.py::test_a_job_of_kafkas_source_runs_with_another_format_and_address",
    ),
    Row(
        "subscribe (topic)",
        "one of these three",
        "topics, comma-separated",
        f"{BATCH}test_earliest_to_latest_is_what_was_sent_with_a_partition_per_queue",
    ),
    Row(
        "subscribePattern",
        "",
        "a regular expression (Python's) for whole topic names; a stream looks for new topics every 30 s. The query "
        "needs the permission to list topics",
        f"{OPTIONS}test_a_pattern_takes_the_topics_whose_whole_names_fit",
    ),
    Row(
        "assign",
        "",
        'the only queues to read, `{"topic": {"broker": [0, 1]}}`',
        f"{OPTIONS}test_assigned_queues_are_read_and_no_others",
    ),
    Row(
        "group (kafka.group.id)",
        "required for streams",
        "consumer group that shows the query's progress",
        f"{STREAM}test_a_running_query_follows_the_topic_and_its_progress_shows_at_the_brokers",
    ),
    Row(
        "groupIdPrefix",
        "-",
        "streams, instead of group: each run creates a group whose name begins with this prefix, shows its progress "
        "there and deletes it when it stops; it needs the permissions to create and to delete such groups. With "
        "schemaStyle=kafka both are optional",
        "unit/pyspark_evenq/test_stream.py::test_a_prefix_makes_a_group_that_is_deleted_when_the_query_stops",
    ),
    Row(
        "includeRetry",
        "false",
        "also read the group's retry topic, as soon as it exists",
        f"{OPTIONS}test_the_retry_topic_of_the_group_is_read_as_well",
    ),
    Row(
        "startingOffsets",
        "`group` (stream), `earliest` (batch)",
        '`group`, `earliest`, `latest` or JSON `{"topic": {"broker": {"0": 5}}}`; -2 is the earliest, -1 the latest. '
        "Without a group, streams begin at `latest`",
        f"{BATCH}test_offsets_as_json_and_more_partitions_than_queues",
    ),
    Row(
        "startingOffsetsByTimestamp",
        "-",
        "a time for each queue, ms since the epoch, JSON as above: start at the first message stored at this time "
        "or later. Takes "
        "precedence over startingOffsets",
        f"{OPTIONS}test_times_say_where_to_start_and_to_end",
    ),
    Row(
        "startingTimestamp",
        "-",
        "the same time for all queues; takes precedence over the other two",
        f"{OPTIONS}test_times_say_where_to_start_and_to_end",
    ),
    Row(
        "startingOffsetsByTimestampStrategy",
        "`latest`; `error` with schemaStyle=kafka",
        "for queues without a message at this time or later: begin at the end, or fail",
        f"{OPTIONS}test_a_queue_without_a_later_message_is_an_error_or_begins_at_its_end",
    ),
    Row(
        "endingOffsets",
        "`latest`",
        "batch only: `latest` or JSON; -1 is the latest",
        f"{OPTIONS}test_ending_offsets_end_each_queue",
    ),
    Row(
        "endingOffsetsByTimestamp, endingTimestamp",
        "-",
        "batch only: end before the first message stored at this time or later; at the latest message if there is none",
        f"{OPTIONS}test_times_say_where_to_start_and_to_end",
    ),
    Row(
        "maxOffsetsPerTrigger (maxRowsPerTrigger)",
        "no limit",
        "most messages in a micro-batch, divided among the queues in proportion to their backlog",
        f"{STREAM}test_available_now_twice_from_one_checkpoint_is_exactly_once_and_leaves_no_lag",
    ),
    Row(
        "maxBytesPerTrigger",
        "no limit",
        "approximate bytes of bodies in a micro-batch, estimated from the next messages of up to 8 queues",
        f"{OPTIONS}test_a_stream_takes_about_so_many_bytes_at_once",
    ),
    Row(
        "minOffsetsPerTrigger, maxTriggerDelay",
        "0, `15m`",
        "a micro-batch waits for this number of messages, at most for this time; neither the first one after a start "
        "nor `availableNow` waits",
        f"{OPTIONS}test_a_stream_waits_for_a_minimum_of_messages_but_not_longer_than_the_delay",
    ),
    Row(
        "minPartitions, maxPartitions, maxRecordsPerPartition",
        "0",
        "split ranges to get at least this many tasks; combine small ranges to get at most this many; split ranges "
        "with "
        "more messages. Queues of topics with message groups are never split: one task reads each, in order. 0 = off",
        f"{OPTIONS}test_tasks_are_split_and_merged",
    ),
    Row(
        "minRecordsPerPartition",
        "2000 (stream), 0 (batch)",
        "combine short ranges of one broker in a task until it has this many messages",
        f"{EFFECTS}test_short_ranges_share_a_task_until_it_has_as_many_messages_as_the_option_says",
    ),
    Row("tags", "all", "`UA \\|\\| AA`", f"{BATCH}test_counting_tags_and_sql_views"),
    Row(
        "sqlFilter",
        "all",
        "an SQL condition on properties and TAGS, instead of tags: brokers send only messages that match",
        f"{OPTIONS}test_brokers_send_what_fits_an_sql_filter",
    ),
    Row(
        "filterPushdown",
        "false",
        "batch only: [filters of the query narrow what the brokers send](#filters-of-the-query)",
        "spark/test_pushdown.py::test_filters_narrow_what_the_brokers_send_and_change_no_result",
    ),
    Row(
        "schemaStyle, includeHeaders",
        "`evenq`, false",
        "`kafka`: [the columns of Spark's Kafka source](spark_from_kafka.md#columns), with headers if "
        "includeHeaders is true",
        f"{OPTIONS}test_columns_in_kafkas_style",
    ),
    Row(
        "includeSystem",
        "false",
        "additional columns: bornHost, storeHost, messageType, deliveryTimestamp, deliveryAttempt, priority",
        f"{OPTIONS}test_columns_of_the_system_come_when_asked_for",
    ),
    Row(
        "failOnDataLoss",
        "true",
        "an error if messages that should be read are lost; false: they are "
        "[counted](#when-something-is-missing), and the query continues with the messages that exist",
        "unit/pyspark_evenq/test_reader.py::test_offsets_that_the_broker_does_not_have_are_data_loss_or_cut",
    ),
    Row(
        "failOnUnavailable",
        "true",
        "batch and `availableNow`: an error if no broker answers for a queue; false: the queue is left out and "
        "[counted](#when-something-is-missing)",
        "spark/test_loss.py::test_a_batch_without_a_broker_from_the_start_is_an_error_or_a_count",
    ),
    Row(
        "format",
        "`auto`",
        "what brokers send. `log`: stored records as they are, which takes a fifth of the processor time of "
        "`message` in "
        "brokers and an eighth in workers; `message`: messages as other consumers get them. `auto` uses records unless "
        "`tags` or `sqlFilter` are set or a broker is too old to send them; in these cases `log` fails",
        f"{EFFECTS}test_a_broker_sends_what_the_option_format_says",
    ),
    Row(
        "blockBytes",
        "2 MiB",
        "size of a transfer, and of the blocks that Spark gets. The next block is transferred while Spark processes "
        "the last",
        f"{EFFECTS}test_a_broker_sends_blocks_of_the_size_that_the_option_says",
    ),
    Row(
        "idleWaitMs",
        "300",
        "how long a trigger waits for new messages; it ends as soon as some arrive, ms",
        "unit/pyspark_evenq/test_watch.py::test_growth_is_told_at_once_and_no_growth_after_the_wait",
    ),
    Row(
        "commitIntervalMs",
        "1000",
        "shortest time between two reports of progress, ms",
        f"{STREAM}test_stopping_a_query_sends_its_last_progress_first",
    ),
    Row(
        "readTimeoutMs",
        "60000",
        "how long a task retries a broker that does not answer before it fails, ms",
        f"{EFFECTS}test_a_broker_that_does_not_answer_is_tried_for_as_long_as_the_option_says",
    ),
    Row(
        "assignment",
        "`exclusive`",
        "stream: `exclusive` reads all queues of its topics, or does not run; `shared` reads the queues that the group "
        "assigns to it, [together with other members](#sharing-a-group)",
        "spark/test_06_group.py::test_two_queries_divide_the_queues_and_one_goes_on_with_all_of_them",
    ),
    Row(
        "memberWeight",
        "1",
        "shared stream: its capacity relative to other members, if the group's [weight](strategies.md) is CAPACITY",
        "unit/pyspark_evenq/test_shared.py::test_alone_it_reads_everything_and_reports_after_each_batch",
    ),
    Row(
        "onGroupBusy",
        "`fail`",
        "stream: what to do if another member reads the topics in the group: `fail`, `wait` until it has left, or "
        "`takeover`; "
        "[below](#a-stream-is-a-member-of-its-group)",
        "spark/test_13_leaving.py::test_a_second_query_in_the_group_fails_and_names_the_first",
    ),
    Row(
        "onOffsetConflict",
        "`checkpoint`",
        "stream: where to start if the group's offsets were changed while the query was stopped: `checkpoint` with a "
        "warning, `broker`, or `fail`",
        "spark/test_09_resets.py::test_a_stopped_query_whose_group_was_moved_starts_as_it_was_told",
    ),
    Row(
        "honorOffsetReset",
        "true",
        "stream: whether a running query follows when an operator changes the offsets of its group; false: brokers "
        "refuse "
        "the change while the query runs, and name the query",
        "spark/test_09_resets.py::test_a_group_is_not_moved_while_a_query_runs_that_does_not_follow",
    ),
    Row(
        "queryName",
        "the group",
        "stream: name of the query in lists of members",
        "spark/test_13_leaving.py::test_a_query_is_a_member_that_holds_all_queues_until_it_is_stopped",
    ),
    Row(
        "checkpointLocation",
        "-",
        "stream: the same location as for its writer, as an absolute path or a URI that `pyarrow.fs` can open on the "
        "driver. A stop then also reports the batch that Spark finished last, which Spark itself reports only with the "
        "next batch",
        "spark/test_06_group.py::test_a_stop_between_two_triggers_leaves_nothing_unreported",
    ),
    Row(
        "accessKey, secretKey",
        "the environment's",
        "[keys that sign calls](security.md); Spark hides both in its UI (`spark.redaction.regex`)",
        f"{UNIT}test_keys_come_from_options_a_file_or_the_environment_of_the_process",
    ),
    Row(
        "credentialsFile",
        "-",
        "a file with both keys on every node; only its path is sent with the query",
        f"{UNIT}test_keys_come_from_options_a_file_or_the_environment_of_the_process",
    ),
    Row(
        "tls",
        "false",
        "use [TLS](tls.md), and trust the system's certificate authorities; or use `evenqs://`, or `EVENQ_TLS_*` in "
        "the "
        "environment of driver and executors",
        f"{UNIT}test_tls_is_said_by_options_or_by_the_scheme",
    ),
    Row(
        "tlsCa, tlsCertificate, tlsKey",
        "-",
        "PEM files of the authority, and of the client's certificate and key, readable under these paths on the driver "
        "and on every executor (a mounted Secret); only the paths are sent with the query",
        "spark/test_tls.py::test_a_batch_and_a_stream_over_tls_with_a_certificate",
    ),
    Row(
        "tlsServerName, tlsInsecure",
        "-, false",
        "the name in the brokers' certificates; trust the first certificate that a broker presents (tests)",
        f"{UNIT}test_tls_is_said_by_options_or_by_the_scheme",
    ),
    Row(
        "gcFreeze",
        "true",
        "exclude the imported libraries from Python's garbage collection after each task (saves 15 ms per task)",
        "unit/pyspark_evenq/test_scanning.py::test_a_worker_freezes_its_libraries_once_unless_told_not_to",
    ),
)

SINK = "spark/test_14_sink.py::"
SINK_SECURE = "spark/test_14_sink_secure.py::"

SINK_ROWS = (
    Row(
        "endpoints (nameServer, kafka.bootstrap.servers)",
        "required",
        "brokers to ask for the route, as for reading. Under Kafka's name, schemaStyle is `kafka` unless given",
        "spark/test_kafka_job.py::test_a_job_of_kafkas_sink_runs_with_another_format_and_address",
    ),
    Row(
        "topic",
        "the column topic",
        "topic of all rows",
        f"{SINK}test_a_batch_job_writes_every_row_once_and_a_second_one_again",
    ),
    Row(
        "delivery",
        "`transactional`",
        "`transactional`, `idempotent` or `atLeastOnce`, [see below](#what-is-promised)",
        f"{SINK}test_a_task_that_runs_again_is_told_by_its_rows_only_when_idempotent",
    ),
    Row(
        "schemaStyle",
        "`evenq`",
        "`evenq` or `kafka`: which columns the rows have",
        f"{SINK}test_deliveries_without_a_decision_write_every_row_in_kafka_style",
    ),
    Row(
        "writeTimeoutMs",
        "60000",
        "how long a task or a commit retries a broker that does not answer before it fails, ms",
        f"{SINK}test_a_broker_that_does_not_answer_is_tried_for_as_long_as_the_option_says",
    ),
    Row(
        "blockRows, blockBytes",
        "1000, 1 MiB",
        "size of a transfer, rows and bytes",
        f"{EFFECTS}test_a_task_sends_blocks_of_the_size_that_the_options_say",
    ),
    Row(
        "inFlight",
        "4",
        "most transfers that one task sends at the same time",
        f"{EFFECTS}test_a_task_has_as_many_transfers_under_way_as_the_option_says",
    ),
    Row(
        "gcFreeze",
        "true",
        "as for reading",
        "unit/pyspark_evenq/test_scanning.py::test_a_worker_that_reads_or_writes_keeps_freed_memory_and_freezes_last",
    ),
    Row(
        "accessKey, secretKey, credentialsFile",
        "the environment's",
        "keys that sign calls, as for reading",
        f"{SINK_SECURE}test_the_sink_signs_its_calls_and_may_write_only_where_it_may_publish",
    ),
    Row(
        "tls, tlsCa, tlsCertificate, tlsKey, tlsServerName, tlsInsecure",
        "-",
        "TLS, as for reading",
        f"{SINK_SECURE}test_the_sink_speaks_tls_with_a_certificate",
    ),
)

KAFKA = (
    "kafka.bootstrap.servers",
    "assign",
    "subscribe",
    "subscribePattern",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsets",
    "startingOffsetsByTimestampStrategy",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "endingOffsets",
    "failOnDataLoss",
    "kafkaConsumer.pollTimeoutMs",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "minPartitions",
    "maxRecordsPerPartition",
    "groupIdPrefix",
    "kafka.group.id",
    "includeHeaders",
)
"""The options of reading in Spark's guide to Kafka (Structured Streaming + Kafka Integration Guide)."""
REFUSED = "unit/pyspark_evenq/test_foreign_options.py::test_an_option_of_kafkas_source_says_what_to_give_instead"
"""Proves that an option without a meaning here is an error that says what to give instead."""
REFUSED_SINK = "unit/pyspark_evenq/test_foreign_options.py::test_an_option_of_kafkas_sink_says_what_to_give_instead"


KAFKA_SINK = ("kafka.bootstrap.servers", "topic", "includeHeaders")
"""The same of writing."""
PASSED_OVER = {"includeHeaders": "accepted without effect: a column headers is always written"}
"""Options of Kafka's sink that are taken and change nothing."""
HEADERS = "spark/test_kafka_job.py::test_a_job_of_kafkas_sink_runs_with_another_format_and_address"


def options_table(rows: Sequence[Row]) -> str:
    """Ours, with the test of each."""
    lines = ["| option | default | meaning | proved by |", "| --- | --- | --- | --- |"]
    lines += [f"| {row.names} | {row.default} | {row.meaning} | {_proof(row.test)} |" for row in rows]
    return "\n".join(lines) + "\n"


def kafka_tables() -> str:
    """Kafka's, with what stands for each."""
    return "\n".join([
        "| option of Kafka's source | here | proved by |",
        "| --- | --- | --- |",
        *(_kafka_row(name, ROWS, FOREIGN, REFUSED) for name in KAFKA),
        *(
            f"| {_starred(name)} | an error: {instead} | {_proof(REFUSED)} |"
            for name, instead in FOREIGN.items()
            if name not in KAFKA
        ),
        "",
        "| option of Kafka's sink | here | proved by |",
        "| --- | --- | --- |",
        *(_kafka_row(name, SINK_ROWS, PASSED_OVER, HEADERS) for name in KAFKA_SINK),
        *(f"| {_starred(name)} | an error: {what} | {_proof(REFUSED_SINK)} |" for name, what in FOREIGN_SINK.items()),
        "",
    ])  # fmt: skip


def _kafka_row(name: str, rows: Sequence[Row], others: Mapping[str, str], proof_of_others: str) -> str:
    for row in rows:
        if name in row.options:
            ours = row.options[0] if name in row.options[1:] and name in ALIASES | WRITE_ALIASES else name
            here = "the same" if ours == name else f"accepted as another name of {ours}"
            return f"| {name} | {here} | {_proof(row.test)} |"
    instead = others[name]
    return f"| {name} | {instead if others is PASSED_OVER else f'an error: {instead}'} | {_proof(proof_of_others)} |"


def _starred(name: str) -> str:
    return name + "*" if name.endswith(".") else name


def _proof(test: str) -> str:
    path, _, name = test.partition("::")
    return f"[{name.removeprefix('test_').replace('_', ' ')}](../../tests/{path})"


def tables() -> dict[str, str]:
    """By page."""
    return {
        "spark.md": options_table(ROWS),
        "spark_sink.md": options_table(SINK_ROWS),
        "spark_from_kafka.md": kafka_tables(),
    }


def with_table(text: str, table: str) -> str:
    """The guide with the table as it should be."""
    head, _, rest = text.partition(BEGIN)
    tail = rest.partition(END)[2]
    return head + BEGIN + table + END + tail


def main(arguments: Sequence[str]) -> int:
    stale = 0
    for name, table in tables().items():
        page = GUIDES / name
        text = page.read_text()
        wanted = with_table(text, table)
        if text == wanted:
            continue
        if arguments == ["--check"]:
            sys.stderr.write(f"{page} is out of date; run python tools/gen_spark_options.py\n")
            stale = 1
        else:
            page.write_text(wanted)
    return stale


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
