"""The table of options in docs/guides/spark.md: what each means, and the test that proves it.

    python tools/gen_spark_options.py            write the table into the guide
    python tools/gen_spark_options.py --check    write nothing; exit 1 if the table in the guide is another one

`tests/unit/tools/test_gen_spark_options.py` checks the rest: all options of ours and of Spark's Kafka source have a
row, and the tests exist.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from pyspark_evenq.foreign_options import FOREIGN

ROOT = Path(__file__).resolve().parents[1]
GUIDE = ROOT / "docs" / "guides" / "spark.md"
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
        "needs the right to list topics",
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
        "streams, in place of group: each run makes a group whose name begins so, shows its progress there and deletes "
        "it when it stops; it needs the rights to create and to delete such groups. With schemaStyle=kafka both may be "
        "left out",
        "unit/pyspark_evenq/test_stream.py::test_a_prefix_makes_a_group_that_is_deleted_when_the_query_stops",
    ),
    Row(
        "includeRetry",
        "false",
        "read the group's retry topic as well, as soon as there is one",
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
        "ms since the epoch by queue, JSON as above; first message stored then or later. Wins over startingOffsets",
        f"{OPTIONS}test_times_say_where_to_start_and_to_end",
    ),
    Row(
        "startingTimestamp",
        "-",
        "the same time for all queues; wins over the other two",
        f"{OPTIONS}test_times_say_where_to_start_and_to_end",
    ),
    Row(
        "startingOffsetsByTimestampStrategy",
        "`latest`; `error` with schemaStyle=kafka",
        "for queues without a message at their time or later: begin at the end, or fail",
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
        "batch only: end before the first message stored then or later, at the latest if there is none",
        f"{OPTIONS}test_times_say_where_to_start_and_to_end",
    ),
    Row(
        "maxOffsetsPerTrigger (maxRowsPerTrigger)",
        "no limit",
        "messages in a micro-batch, shared out in proportion to the backlog",
        f"{STREAM}test_available_now_twice_from_one_checkpoint_is_exactly_once_and_leaves_no_lag",
    ),
    Row(
        "maxBytesPerTrigger",
        "no limit",
        "bytes of bodies in a micro-batch, about: by the size of the next messages of up to 8 queues",
        f"{OPTIONS}test_a_stream_takes_about_so_many_bytes_at_once",
    ),
    Row(
        "minOffsetsPerTrigger, maxTriggerDelay",
        "0, `15m`",
        "a micro-batch waits for so many messages, but not longer; neither the first one after a start nor "
        "`availableNow` waits",
        f"{OPTIONS}test_a_stream_waits_for_a_minimum_of_messages_but_not_longer_than_the_delay",
    ),
    Row(
        "minPartitions, maxPartitions, maxRecordsPerPartition",
        "0",
        "split ranges until there are so many tasks; let small ones share tasks until there are no more; split longer "
        "ranges. Queues of topics that take message groups are never split: one task reads each, in order. 0 = off",
        f"{OPTIONS}test_tasks_are_split_and_merged",
    ),
    Row(
        "minRecordsPerPartition",
        "2000 (stream), 0 (batch)",
        "short ranges of one broker share a task until it has so many",
        "unit/pyspark_evenq/test_planner.py::test_short_ranges_of_one_broker_share_a_task",
    ),
    Row("tags", "all", "`UA \\|\\| AA`", f"{BATCH}test_counting_tags_and_sql_views"),
    Row(
        "sqlFilter",
        "all",
        "an SQL condition on properties and TAGS, in place of tags: the brokers send only what fits",
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
        "`kafka`: [the columns of Spark's Kafka source](#jobs-written-for-kafka), with headers if asked for",
        f"{OPTIONS}test_columns_in_kafkas_style",
    ),
    Row(
        "includeSystem",
        "false",
        "more columns: bornHost, storeHost, messageType, deliveryTimestamp, deliveryAttempt, priority",
        f"{OPTIONS}test_columns_of_the_system_come_when_asked_for",
    ),
    Row(
        "failOnDataLoss",
        "true",
        "an error when messages to be read are gone; false: they are [counted](#when-something-is-missing), and on "
        "with what is there",
        "unit/pyspark_evenq/test_reader.py::test_offsets_that_the_broker_does_not_have_are_data_loss_or_cut",
    ),
    Row(
        "failOnUnavailable",
        "true",
        "batch and `availableNow`: an error when no broker answers for a queue; false: it is left out and "
        "[counted](#when-something-is-missing)",
        "spark/test_loss.py::test_a_batch_without_a_broker_from_the_start_is_an_error_or_a_count",
    ),
    Row(
        "format",
        "`auto`",
        "what brokers send: `log`, stored records as they are, which costs them a fifth and the workers an eighth of "
        "`message`, messages as other consumers get them. `auto` takes records unless `tags` or `sqlFilter` are given "
        "or a broker is too old to send them; `log` fails then",
        "spark/test_11_arrow_contract.py::test_what_was_sent_comes_out_of_spark_in_every_format",
    ),
    Row(
        "blockBytes",
        "1 MiB",
        "size of a transfer. A worker fetches the next one while Spark takes the last",
        f"{BATCH}test_a_broker_killed_in_the_middle_of_a_read_loses_and_repeats_nothing",
    ),
    Row(
        "idleWaitMs",
        "300",
        "how long a trigger waits for new messages; it ends at once when some come",
        "unit/pyspark_evenq/test_watch.py::test_growth_is_told_at_once_and_no_growth_after_the_wait",
    ),
    Row(
        "commitIntervalMs",
        "1000",
        "least time between two reports of progress",
        f"{STREAM}test_stopping_a_query_sends_its_last_progress_first",
    ),
    Row(
        "readTimeoutMs",
        "60000",
        "how long a broker that does not answer is tried before the task fails",
        f"{BATCH}test_mistakes_are_told_in_words",
    ),
    Row(
        "assignment",
        "`exclusive`",
        "stream: `exclusive` reads all queues of its topics, or does not run; `shared` reads those that the group "
        "gives it, [beside other members](#sharing-a-group)",
        "spark/test_06_group.py::test_two_queries_divide_the_queues_and_one_goes_on_with_all_of_them",
    ),
    Row(
        "memberWeight",
        "1",
        "shared stream: how much it takes beside others, in a group whose [weight](strategies.md) is CAPACITY",
        f"{UNIT}test_a_shared_stream_has_a_weight_and_leaves_out_what_is_for_all_queues",
    ),
    Row(
        "onGroupBusy",
        "`fail`",
        "stream: somebody else reads the topics in the group. `fail`, `wait` until they have left, or `takeover`; "
        "[below](#a-stream-is-a-member-of-its-group)",
        "spark/test_13_leaving.py::test_a_second_query_in_the_group_fails_and_names_the_first",
    ),
    Row(
        "onOffsetConflict",
        "`checkpoint`",
        "stream: where it starts when its group was moved while it was stopped: `checkpoint` with a warning, `broker`, "
        "or `fail`",
        "spark/test_09_resets.py::test_a_stopped_query_whose_group_was_moved_starts_as_it_was_told",
    ),
    Row(
        "honorOffsetReset",
        "true",
        "stream: whether a running query follows when an operator moves its group; false: such a move is refused, with "
        "its name, as long as it runs",
        "spark/test_09_resets.py::test_a_group_is_not_moved_while_a_query_runs_that_does_not_follow",
    ),
    Row(
        "queryName",
        "the group",
        "stream: how the query is called in the lists of members",
        "spark/test_13_leaving.py::test_a_query_is_a_member_that_holds_all_queues_until_it_is_stopped",
    ),
    Row(
        "accessKey, secretKey",
        "the environment's",
        "[what calls are signed with](security.md); Spark hides both from its pages (`spark.redaction.regex`)",
        f"{UNIT}test_keys_come_from_options_a_file_or_the_environment_of_the_process",
    ),
    Row(
        "credentialsFile",
        "-",
        "the same from a file on every node; only its path travels with the query",
        f"{UNIT}test_keys_come_from_options_a_file_or_the_environment_of_the_process",
    ),
    Row(
        "tls",
        "false",
        "speak [TLS](tls.md), trusting the system's authorities; also by `evenqs://`, or `EVENQ_TLS_*` where a "
        "task runs",
        f"{UNIT}test_tls_is_said_by_options_or_by_the_scheme",
    ),
    Row(
        "tlsCa, tlsCertificate, tlsKey",
        "-",
        "PEM files of the authority and of one's own certificate, readable under these paths on the driver and on "
        "every executor (a mounted Secret); only the paths travel with the query",
        "spark/test_tls.py::test_a_batch_and_a_stream_over_tls_with_a_certificate",
    ),
    Row(
        "tlsServerName, tlsInsecure",
        "-, false",
        "the name in the brokers' certificates; trust whatever is shown first (tests)",
        f"{UNIT}test_tls_is_said_by_options_or_by_the_scheme",
    ),
    Row(
        "gcFreeze",
        "true",
        "keep Python's garbage collector from going over the libraries after each task (15 ms each)",
        "unit/pyspark_evenq/test_scanning.py::test_a_worker_freezes_its_libraries_once_unless_told_not_to",
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
REFUSED = f"{UNIT}test_a_wrong_value_is_named_with_what_would_be_right"
"""Proves that an option without a meaning here is an error that says what to give instead."""


def table() -> str:
    """The part of the guide between the marks."""
    lines = ["| option | default | meaning | proved by |", "| --- | --- | --- | --- |"]
    for row in ROWS:
        name = row.test.rpartition("::")[2]
        path = row.test.rpartition("::")[0]
        proof = f"[{name.removeprefix('test_').replace('_', ' ')}](../../tests/{path})"
        lines.append(f"| {row.names} | {row.default} | {row.meaning} | {proof} |")
    refused = f"../../tests/{REFUSED.partition('::')[0]}"
    lines += [
        "",
        f"Other options of Spark's Kafka source are errors that say what to give instead ([test]({refused})):",
        "",
        "| option of Kafka's source | instead |",
        "| --- | --- |",
        *(f"| {name}{'*' if name.endswith('.') else ''} | {instead} |" for name, instead in FOREIGN.items()),
    ]
    return "\n".join(lines) + "\n"


def with_table(text: str) -> str:
    """The guide with the table as it should be."""
    head, _, rest = text.partition(BEGIN)
    tail = rest.partition(END)[2]
    return head + BEGIN + table() + END + tail


def main(arguments: Sequence[str]) -> int:
    text = GUIDE.read_text()
    wanted = with_table(text)
    if arguments == ["--check"]:
        if text != wanted:
            sys.stderr.write(f"{GUIDE} is out of date; run python tools/gen_spark_options.py\n")
        return int(text != wanted)
    GUIDE.write_text(wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
