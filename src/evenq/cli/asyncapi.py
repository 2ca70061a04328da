"""`evenq asyncapi`: an AsyncAPI 3.0 document of a running cluster.

Pure functions build the document from the views of `Admin`; `run` collects the views and writes the text. Names of
objects in the document may only have letters, digits, `.`, `-` and `_`, and names of topics and groups may have `%`, so
names are mapped, and the real one is the address of a channel.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from evenq.cli.admin import warn_silent, with_admin
from evenq.cli.formats import Output
from evenq.cli.output import print_lines
from evenq.cli.yaml_text import yaml_text
from evenq.client.async_admin import Admin
from evenq.client.core.admin.views import BrokerView, ClusterView, GroupDetails, TopicDetails
from evenq.client.wiring import ClientContext
from evenq.errors import Error, GroupNotFound, TopicNotFound

Result = TypeVar("Result")
VERSION = "3.0.0"
PROTOCOL, PROTOCOL_VERSION = "rocketmq", "5"
CALLS_MAX = 16
"""Calls for topics and groups at the same time."""
KEYS, CERTIFICATE = "accessKey", "clientCertificate"
SCHEMES: dict[str, dict[str, Any]] = {
    KEYS: {
        "type": "userPassword",
        "description": "Access key and secret key. The secret signs each call and is not sent.",
    },
    CERTIFICATE: {"type": "X509", "description": "A client certificate (mutual TLS)."},
}
_NO_KEY = re.compile(r"[^A-Za-z0-9.\-_]")


def run(options: argparse.Namespace) -> None:
    """Writes the document of the command's options: as JSON, or with `-o yaml` as YAML."""
    context = ClientContext.of(None, None, endpoint=options.endpoint)
    schemes = [KEYS] if context.credentials is not None else []
    if context.tls is not None and str(context.tls.certificate):
        schemes.append(CERTIFICATE)

    async def work(admin: Admin) -> dict[str, Any]:
        cluster = await admin.describe_cluster()
        silent = sorted({broker.name for broker in cluster.brokers if not broker.answered})
        warn_silent(options, silent, "topics and groups that only they have")
        names = options.topic or sorted(view.topic for view in await admin.list_topics())
        gone = () if options.topic else (TopicNotFound,)  # a topic that was named must exist
        topics = await _each(admin.describe_topic, names, gone=gone)
        listed = [view.group for view in await admin.list_groups()]
        groups = await _each(admin.describe_group, listed, gone=(GroupNotFound,))
        return document(
            cluster,
            topics,
            groups,
            title=options.title or cluster.cluster or "evenq",
            version=options.document_version,
            tls=context.tls is not None,
            schemes=schemes,
        )

    made = with_admin(options, work)
    as_yaml = options.output is Output.YAML
    text = yaml_text(made) if as_yaml else json.dumps(made, indent=2, ensure_ascii=False)
    print_lines(*text.splitlines())


def document(
    cluster: ClusterView,
    topics: Sequence[TopicDetails],
    groups: Sequence[GroupDetails],
    *,
    title: str,
    version: str,
    tls: bool = False,
    schemes: Sequence[str] = (),
) -> dict[str, Any]:
    """Returns the document. `schemes`: names in `SCHEMES` that clients need."""
    servers = _servers(cluster.brokers, tls=tls, schemes=schemes)
    keys = _keys(details.topic for details in topics)
    made: dict[str, Any] = {
        "asyncapi": VERSION,
        "info": {"title": title, "version": version, "description": _described(cluster)},
        "servers": {key: server for found in servers.values() for key, server in found.items()},
        "channels": {keys[details.topic]: _channel(details, keys[details.topic], servers) for details in topics},
        "operations": _operations(groups, keys),
        "components": {"messages": {keys[details.topic]: _message(details) for details in topics}},
    }
    if schemes:
        made["components"]["securitySchemes"] = {name: SCHEMES[name] for name in schemes}
    return made


def _described(cluster: ClusterView) -> str:
    return f"Topics and consumer groups of the evenq cluster {cluster.cluster}.".replace("  ", " ")


def _servers(
    brokers: Sequence[BrokerView], *, tls: bool, schemes: Sequence[str]
) -> dict[str, dict[str, dict[str, Any]]]:
    """Returns the servers of each broker name: one for each address."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for broker in sorted(brokers, key=lambda one: (one.name, one.broker_id)):
        own = found.setdefault(broker.name, {})
        for address in broker.addresses:
            key = _key(broker.name) + (f"-{len(own) + 1}" if own else "")
            own[key] = {
                "host": address,
                "protocol": PROTOCOL,
                "protocolVersion": PROTOCOL_VERSION,
                "description": f"Broker {broker.name}, gRPC{' with TLS' if tls else ''}.",
                **({"security": [_ref("components", "securitySchemes", name) for name in schemes]} if schemes else {}),
            }
    return found


def _channel(details: TopicDetails, key: str, servers: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    queues: dict[str, int] = {}
    for view in details.queues:
        queues[view.queue.broker_name] = queues.get(view.queue.broker_name, 0) + 1
    facts: dict[str, Any] = {"messageType": details.message_type.value, "queues": queues}
    if details.retention_ms is not None:
        facts["retentionMs"] = details.retention_ms
    total = sum(queues.values())
    return {
        "address": details.topic,
        "title": details.topic,
        "summary": f"A topic for {details.message_type.value} messages with {total} queues.",
        "servers": [_ref("servers", name) for broker in sorted(queues) for name in servers.get(broker, ())],
        "messages": {"message": _ref("components", "messages", key)},
        "x-evenq": facts,
    }


def _message(details: TopicDetails) -> dict[str, Any]:
    return {
        "name": details.topic,
        "title": f"A message of {details.topic}",
        "headers": {
            "type": "object",
            "description": "Properties of the message.",
            "additionalProperties": {"type": "string"},
        },
        "x-evenq": {"messageType": details.message_type.value},
    }


def _operations(groups: Sequence[GroupDetails], keys: Mapping[str, str]) -> dict[str, Any]:
    """Returns an operation for each group and topic that it reads."""
    reads = [
        (details, topic)
        for details in sorted(groups, key=lambda one: one.summary.group)
        for topic in _topics_of(details)
        if topic in keys
    ]
    names = _keys(f"{details.summary.group}.{topic}" for details, topic in reads)
    return {
        names[f"{details.summary.group}.{topic}"]: _operation(details, topic, keys[topic]) for details, topic in reads
    }


def _topics_of(details: GroupDetails) -> list[str]:
    """Returns what the members subscribe to and what the group has read."""
    topics = {topic for member in details.members for topic in member.subscriptions}
    topics.update(view.queue.topic for view in details.queues)
    return sorted(topics)


def _operation(details: GroupDetails, topic: str, key: str) -> dict[str, Any]:
    group = details.summary
    filters = sorted({member.subscriptions[topic] for member in details.members if topic in member.subscriptions})
    members = sum(topic in member.subscriptions for member in details.members)
    return {
        "action": "receive",
        "channel": _ref("channels", key),
        "title": f"{group.group} reads {topic}",
        "summary": f"Consumer group {group.group} reads topic {topic}.",
        "messages": [_ref("channels", key, "messages", "message")],
        "x-evenq": {
            "group": group.group,
            "members": members,
            "filters": filters,
            "ordered": group.ordered,
            "maxAttempts": group.max_attempts,
            **({"strategy": group.strategy} if group.strategy else {}),
        },
    }


def _keys(names: Iterable[str]) -> dict[str, str]:
    """Returns a key of the document for each name; names whose keys would be equal get a number."""
    taken: set[str] = set()
    keys: dict[str, str] = {}
    for name in names:
        key, number = _key(name), 1
        while key in taken:
            number += 1
            key = f"{_key(name)}-{number}"
        taken.add(key)
        keys[name] = key
    return keys


def _key(name: str) -> str:
    return _NO_KEY.sub("_", name)


def _ref(*path: str) -> dict[str, str]:
    return {"$ref": "#/" + "/".join(path)}


async def _each(
    call: Callable[[str], Awaitable[Result]], names: Iterable[str], *, gone: tuple[type[Error], ...]
) -> list[Result]:
    """Returns the results in order, without those of names that raise one of `gone`: they ended meanwhile."""
    slots = asyncio.Semaphore(CALLS_MAX)

    async def one(name: str) -> Result | None:
        async with slots:
            try:
                return await call(name)
            except gone:
                return None

    results = await asyncio.gather(*map(one, names), return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result  # alone, and not in the group that a TaskGroup would raise: its class decides the exit code
    return [result for result in results if result is not None and not isinstance(result, BaseException)]
