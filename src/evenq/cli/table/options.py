"""The grammar of `evenq table` and `evenq query`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from evenq.cli.formats import add_output
from evenq.cli.grammar import add_topic_name, command, noun
from evenq.cli.values import duration_ms, place, positive

_TABLE = """\
examples:
  evenq table export orders --to /tables                  write the files that can be written now
  evenq table follow orders --to /tables                  the same until SIGTERM
  evenq table list --to /tables                           the topics that have a table
  evenq table show orders --to /tables                    queues, offsets, files, lag and typed columns
  evenq table verify orders --to /tables --whole          read every row
  evenq table expire orders --to /tables --before 365d --yes
  evenq table publish orders --to /tables --iceberg lake.sales.orders
  evenq query "select count(*) from orders" --tables /tables

A table is the history of a topic as Parquet files, which DuckDB, Polars, pandas and Spark read without evenq. DIR is a
folder, or a URL of fsspec, if that is installed (s3://bucket/folder). Whoever can read it reads the topic.
"""
_EXPORT = """\
examples:
  evenq table export orders --to /tables
  evenq table export orders --to /tables --tail           also the newest messages, whose file is still open
  evenq table export orders --to s3://lake/evenq --rows-per-file 1000000
  evenq table export orders --to /tables --table-schema order.schema.json
  evenq table export orders --to /tables --table-schema shop.pb --table-message shop.v1.Order

Repeat it at any time: it continues after the last file. A file ends at a multiple of --rows-per-file, and at the end of
each window of --close-after. Both belong to the table and cannot be changed later. With keys, the user needs DESCRIBE
and CONSUME on the topic.

--table-schema adds typed columns. They belong to the table, too: give it once, and again to add columns. A body that
does not fit stays as it is, with null in the typed columns and the reason in bodyError.
"""
_FOLLOW = """\
examples:
  evenq table follow --to /tables                         all topics that are tables: evenq topic create orders --table
  evenq table follow orders --to s3://lake/evenq --close-after 1m

Without a topic it also finds the tables that are declared later, and exports one after the other. It retries until it
can continue, and logs each kind of failure once. SIGTERM and Ctrl-C end it after its current file, with exit code 0. A
second one beside it does no harm.
"""
_VERIFY = """\
examples:
  evenq table verify --to /tables                         every topic
  evenq table verify orders --to /tables --whole          also reads every row
  evenq table verify orders --to /tables --offline        calls no broker

Exit code 0: no findings. 1: a gap, rows that are in two files, a damaged file, or messages that retention deleted
before they were exported. `evenq table rebuild` writes damaged and missing files again.
"""
_REBUILD = """\
examples:
  evenq table rebuild orders --to /tables
  evenq table rebuild orders --to /tables --whole         also reads every row to find the damaged files

Writes damaged files, and files that are missing between others, again under their names, as far as the log still has
their messages. A damaged file stays until the new one is whole. Exit code 1: some could not be written. A table that is
registered in Iceberg gets the new entries of these files in one commit; its catalog must answer.
"""
_EXPIRE = """\
examples:
  evenq table expire orders --to /tables --before 365d          the files that would be deleted
  evenq table expire orders --to /tables --before 2026-01-01 --yes

Deletes whole files, oldest first, whose rows were all stored before that time. The newest file of each queue stays: its
name says where the export continues.
"""
_PUBLISH = """\
examples:
  evenq table publish orders --to /tables --iceberg lake.sales.orders
  evenq table publish orders --to /tables                 again: the folder names its Iceberg table
  evenq table publish orders --to /tables --follow        the same until SIGTERM

Registers the files as they are: no row is copied, and no broker is called. The settings of the catalog are those of
pyiceberg: ~/.pyiceberg.yaml, or PYICEBERG_CATALOG__LAKE__URI for the catalog `lake`. The namespace must exist; the
table is created. Repeat it at any time: a file is registered once. `show`, `verify` and `expire` then call the catalog,
too.
"""
_QUERY = """\
examples:
  evenq query "select count(*) from orders" --tables /tables
  evenq query "select tag, count(*) n from orders group by tag order by n desc" --tables /tables -o json
  evenq query "select queueOffset, decode(body) from orders where list_contains(keys, '42')" --tables /tables --csv
  evenq query 'select max(storeTimestamp) from "shop%orders"' --tables s3://lake/evenq --no-tail

Each topic with a table is a view of its name: the rows of the table and those that only brokers have, each once. SQL is
that of DuckDB. A query can read these files only, and cannot write.
"""


def add_table(commands: Any) -> None:
    actions = noun(commands, "table", "write the history of a topic as Parquet files, and check them", _TABLE)
    export = command(
        actions,
        "export",
        "write the files that can be written now",
        "table.commands",
        "export",
        examples=_EXPORT,
        extras="tables",
    )
    add_topic_name(export, "topic")
    _add_export(export)
    export.add_argument(
        "--tail", action="store_true", help="also write the newest messages: a file ends at the end of each queue"
    )
    follow = command(
        actions,
        "follow",
        "write files as messages arrive, until SIGTERM",
        "table.following",
        "follow",
        examples=_FOLLOW,
        extras="tables",
    )
    add_topic_name(follow, "topic", nargs="?", help="only this topic (default: all that are declared tables)")
    _add_export(follow)
    follow.add_argument(
        "--every", type=duration_ms, default=5_000, metavar="TIME", help="pause between two looks (default 5s)"
    )
    listing = command(
        actions, "list", "list topics that have a table", "table.reports", "list_tables", remote=False, extras="tables"
    )
    _add_target(listing)
    add_output(listing)
    show = command(
        actions, "show", "show queues, offsets, files and lag", "table.reports", "show", wide=True, extras="tables"
    )
    add_topic_name(show, "topic")
    _add_target(show)
    _add_offline(show)
    show.add_argument("--columns", action="store_true", help="show the typed columns only")
    verify = command(
        actions,
        "verify",
        "compare names, footers and offsets",
        "table.reports",
        "verify",
        examples=_VERIFY,
        extras="tables",
    )
    add_topic_name(verify, "topic", nargs="?", help="only this topic (default: all in the folder)")
    _add_target(verify)
    _add_offline(verify)
    verify.add_argument("--whole", action="store_true", help="also read every row")
    rebuild = command(
        actions,
        "rebuild",
        "write damaged and missing files again",
        "table.rebuilding",
        "rebuild",
        examples=_REBUILD,
        extras="tables",
    )
    add_topic_name(rebuild, "topic")
    _add_target(rebuild)
    rebuild.add_argument("--whole", action="store_true", help="also read every row")
    _add_expire(actions)
    _add_publish(actions)


def add_query(commands: Any) -> None:
    text = "query tables and the newest messages with SQL"
    query = command(commands, "query", text, "table.querying", "run", examples=_QUERY, extras="query")
    query.add_argument("sql", metavar="SQL", help="one SELECT")
    query.add_argument("--tables", type=place, required=True, metavar="DIR", help="folder or URL of the tables")
    query.add_argument("--no-tail", action="store_true", help="read the tables alone, and call no broker")
    query.add_argument("--csv", action="store_true", help="print CSV with a header")


def _add_expire(actions: Any) -> None:
    expire = command(
        actions,
        "expire",
        "delete files older than a time",
        "table.reports",
        "expire",
        examples=_EXPIRE,
        remote=False,
        extras="tables",
    )
    expire.add_argument("topic", help="the topic, with its namespace")
    _add_target(expire)
    expire.add_argument(
        "--before", required=True, metavar="TIME", help="an age (365d), ISO 8601 (2026-01-31) or ms since the epoch"
    )
    expire.add_argument("--yes", action="store_true", help="confirm the deletion")
    add_output(expire)


def _add_publish(actions: Any) -> None:
    text = "register the files in an Iceberg table"
    publish = command(
        actions, "publish", text, "table.publishing", "publish", examples=_PUBLISH, remote=False, extras="iceberg"
    )
    publish.add_argument("topic", help="the topic, with its namespace")
    _add_target(publish)
    publish.add_argument(
        "--iceberg",
        metavar="CATALOG.NAMESPACE.TABLE",
        help="the Iceberg table, for the first time (default: the one that the folder names)",
    )
    publish.add_argument("--follow", action="store_true", help="register files as they appear, until SIGTERM")
    publish.add_argument(
        "--every", type=duration_ms, default=5_000, metavar="TIME", help="pause between two looks (default 5s)"
    )
    add_output(publish)


def _add_export(parser: argparse.ArgumentParser) -> None:
    _add_target(parser)
    parser.add_argument(
        "--rows-per-file",
        type=positive,
        metavar="N",
        help="a file ends at each multiple of N offsets: 100 to 10000000 (default: the table's, otherwise 250000)",
    )
    parser.add_argument(
        "--close-after",
        type=duration_ms,
        metavar="TIME",
        help="a file also ends with each window of store time of this length: 1s to 7d (default: the table's, "
        "otherwise 10m)",
    )
    parser.add_argument(
        "--settle",
        type=duration_ms,
        default=5_000,
        metavar="TIME",
        help="least age of the newest message of a file: more than the flush interval of brokers, and than their "
        "clocks differ from this one (default 5s)",
    )
    parser.add_argument(
        "--table-schema",
        type=Path,
        metavar="FILE",
        help="typed columns from bodies: a JSON Schema, or a descriptor set (protoc --include_imports -o FILE) "
        "(default: the table's)",
    )
    parser.add_argument(
        "--table-message", default="", metavar="NAME", help="full name of the bodies' message in the descriptor set"
    )
    parser.add_argument(
        "--allow-gaps",
        action="store_true",
        help="continue after messages that retention deleted before they were exported, and record the gap",
    )
    parser.add_argument(
        "--no-report",
        dest="report",
        action="store_false",
        help="do not report to brokers what is exported: their retention does not wait for this table",
    )


def _add_target(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--to", type=place, required=True, metavar="DIR", help="folder or URL of the tables")


def _add_offline(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--offline", action="store_true", help="call no broker and no catalog: without lag")
