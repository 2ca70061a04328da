"""`evenq broker list | show` and `evenq cluster show`."""

from __future__ import annotations

import argparse
from collections.abc import Iterable

from evenq.cli.admin import Admin, with_admin
from evenq.cli.output import Column, Listing, Page, print_page
from evenq.errors import NotFound
from evenq.model import BrokerAddress
from evenq.wire.stubs.evenq.v1 import admin_pb2

__all__ = ["cluster", "list_all", "show"]

_COLUMNS = (
    Column("broker", "broker"),
    Column("id", "id", "number"),
    Column("address", "address"),
    Column("answers", "answers"),
    Column("draining", "draining"),
    Column("topics", "topics", "number"),
    Column("messages_in", "messages in", "number"),
    Column("messages_out", "messages out", "number"),
    Column("log_bytes", "log bytes", "number"),
    Column("connections", "connections", "number"),
    Column("started_ms", "started", "time"),
    Column("missing_since_ms", "missing since", "time"),
)


def _listing(brokers: Iterable[admin_pb2.BrokerSummary], missing: Iterable[admin_pb2.MissingBroker] = ()) -> Listing:
    """Those that are there, then those that others knew and that are not."""
    ordered = sorted(brokers, key=lambda broker: (broker.broker.name, broker.broker.id))
    rows = [
        (
            b.broker.name,
            b.broker.id,
            _address(b),
            b.answered,
            b.draining,
            b.topics,
            b.messages_in,
            b.messages_out,
            b.log_bytes,
            b.connections,
            b.broker.start_ms,
            0,
        )
        for b in ordered
    ]
    rows += [(one.name, 0, "", False, False, 0, 0, 0, 0, 0, 0, one.gone_ms) for one in missing]
    return Listing(key="brokers", columns=_COLUMNS, rows=rows)


def _address(broker: admin_pb2.BrokerSummary) -> str:
    first = next(iter(broker.broker.listeners), None)
    return BrokerAddress(first.name, first.host, first.port, first.tls).address if first is not None else ""


def list_all(options: argparse.Namespace) -> None:
    """`evenq broker list`."""

    async def work(admin: Admin) -> None:
        answer = await admin.call("ListBrokers", admin_pb2.ListBrokersRequest(), admin_pb2.ListBrokersResponse)
        print_page(Page(facts={}, listings=[_listing(answer.brokers, answer.missing)]), as_json=options.json)

    with_admin(options, work)


def show(options: argparse.Namespace) -> None:
    """`evenq broker show NAME`."""
    if options.name is None:
        list_all(options)
        return

    async def work(admin: Admin) -> None:
        answer = await admin.call("ListBrokers", admin_pb2.ListBrokersRequest(), admin_pb2.ListBrokersResponse)
        found = [broker for broker in answer.brokers if broker.broker.name == options.name]
        if not found:
            names = ", ".join(sorted(broker.broker.name for broker in answer.brokers))
            raise NotFound(f"no broker is named {options.name}; the cluster has {names or 'none'}")
        (row, *_) = _listing(found).as_json()
        facts: dict[str, str | int | bool | list[str] | None] = {**row, "version": found[0].broker.version}
        print_page(Page(facts=facts), as_json=options.json)

    with_admin(options, work)


def cluster(options: argparse.Namespace) -> None:
    """`evenq cluster show`."""

    async def work(admin: Admin) -> None:
        answer = await admin.call(
            "DescribeCluster", admin_pb2.DescribeClusterRequest(), admin_pb2.DescribeClusterResponse
        )
        facts: dict[str, str | int | bool | list[str] | None] = {
            "cluster": answer.cluster,
            "nameservers": list(answer.nameservers),
            "rebalancer": answer.rebalancer,
            "rebalancer_answers": answer.rebalancer_answers,
            "topics": answer.topics,
            "groups": answer.groups,
        }
        print_page(Page(facts=facts, listings=[_listing(answer.brokers, answer.missing)]), as_json=options.json)

    with_admin(options, work)
