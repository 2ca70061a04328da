"""The order of option, context, environment and default: `contexts.settling` is the only place that decides it."""

from __future__ import annotations

import os
from typing import Any

import pytest

from evenq.cli.contexts.file import ClusterContext, Contexts, change_contexts, contexts_path
from evenq.cli.contexts.settling import full_name, in_namespace, settle
from evenq.cli.parser import make_parser
from evenq.errors import NotFound


@pytest.fixture
def settled(config_of_its_own: object, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Two contexts, `prod` with everything and the current one, `lab`; returns the options of a line, settled."""
    prod = ClusterContext(
        endpoint="prod:1", access_key="shop", secret_key="prod-secret", tls_ca="/prod-ca", namespace="team"
    )
    lab = ClusterContext(endpoint="lab:1", credentials="/lab.toml", tls_insecure=True)
    content = Contexts(contexts={"prod": prod, "lab": lab}, current="lab")
    change_contexts(contexts_path(os.environ), lambda _: content)

    def go(line: str, **environment: str) -> Any:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        kept = dict(os.environ)
        options = make_parser().parse_args(line.split())
        try:
            settle(options)
            options.keys = {name: os.environ.get(name, "") for name in ("EVENQ_ACCESS_KEY", "EVENQ_CREDENTIALS")}
        finally:
            for name in os.environ.keys() - kept.keys():
                monkeypatch.delenv(name)
            for name, value in kept.items():
                monkeypatch.setenv(name, value)
        return options

    return go


@pytest.mark.parametrize(
    ("line", "environment", "endpoint", "access_key", "credentials"),
    [
        ("topic list", {}, "lab:1", "", "/lab.toml"),
        ("topic list", {"EVENQ_CONTEXT": "prod"}, "prod:1", "shop", ""),
        ("topic list --context prod", {"EVENQ_CONTEXT": "lab"}, "prod:1", "shop", ""),
        ("topic list --context prod", {"EVENQ_ENDPOINT": "env:1"}, "prod:1", "shop", ""),
        ("topic list", {"EVENQ_ENDPOINT": "env:1"}, "env:1", "", ""),
        ("topic list", {"EVENQ_ENDPOINT": "env:1", "EVENQ_CONTEXT": "prod"}, "env:1", "", ""),
        ("topic list --endpoint opt:1", {"EVENQ_CONTEXT": "prod"}, "opt:1", "", ""),
        ("topic list --endpoint opt:1 --context prod", {}, "opt:1", "shop", ""),
        ("topic list", {"EVENQ_CREDENTIALS": "/env.toml"}, "lab:1", "", "/env.toml"),
        ("topic list --context prod", {"EVENQ_CREDENTIALS": "/env.toml"}, "prod:1", "shop", ""),
        ("topic list --context prod --credentials /o.toml", {"EVENQ_ACCESS_KEY": "e"}, "prod:1", "", "/o.toml"),
        ("console --context prod", {}, "prod:1", "shop", ""),
    ],
)
def test_the_first_source_that_has_a_value_gives_it(
    settled: Any, line: str, environment: dict[str, str], endpoint: str, access_key: str, credentials: str
) -> None:
    options = settled(line, **environment)
    assert options.endpoint == endpoint
    assert options.keys == {"EVENQ_ACCESS_KEY": access_key, "EVENQ_CREDENTIALS": credentials}


@pytest.mark.parametrize(
    ("line", "environment", "ca", "insecure"),
    [
        ("topic list --context prod", {}, "/prod-ca", False),
        ("topic list --context prod --tls-ca /mine", {}, "/mine", False),
        ("topic list --context prod --tls-insecure", {}, None, True),
        ("topic list", {}, None, True),
        ("topic list", {"EVENQ_TLS_CA": "/env-ca"}, None, False),
        ("topic list --tls-ca /mine", {}, "/mine", False),
        ("topic list", {"EVENQ_CONTEXT": "prod", "EVENQ_TLS_CA": "/env-ca"}, None, False),
    ],
)
def test_trust_comes_from_one_source_and_is_never_weakened_by_a_context(
    settled: Any, line: str, environment: dict[str, str], ca: str | None, insecure: bool
) -> None:
    options = settled(line, **environment)
    assert (options.tls_ca, options.tls_insecure) == (ca, insecure)


def test_without_contexts_the_environment_and_the_default_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    options = make_parser().parse_args(["topic", "list"])
    settle(options)
    assert options.endpoint == "127.0.0.1:8081"
    monkeypatch.setenv("EVENQ_ENDPOINT", "env:1")
    options = make_parser().parse_args(["topic", "list"])
    settle(options)
    assert options.endpoint == "env:1"


def test_a_context_that_does_not_exist_is_an_error_with_the_next_command(settled: Any, run: Any) -> None:
    with pytest.raises(NotFound, match=r"no context other \(known: lab, prod\); `evenq context list`"):
        settled("topic list", EVENQ_CONTEXT="other")
    code, _, err, calls = run("topic list --context other")
    assert (code, calls) == (3, [])
    assert "evenq context add other" in err


def test_a_namespace_is_put_before_names_of_topics_and_groups_only(settled: Any) -> None:
    options = settled("offset clone audit --from billing --topic orders --queue broker-a/0 --context prod")
    assert (options.group, options.source, options.topic) == ("team%audit", "team%billing", "team%orders")
    assert options.queue == [("broker-a", 0)]
    assert settled("topic show orders --context prod --namespace other").name == "other%orders"
    assert settled("topic show orders --context prod --namespace=").name == "orders"
    assert settled("topic show").name is None
    assert settled("broker show broker-a --context prod").name == "broker-a"


@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("orders", "team%orders"),
        ("other%orders", "other%orders"),
        ("%DLQ%billing", "%DLQ%team%billing"),
        ("%RETRY%other%billing", "%RETRY%other%billing"),
        ("", ""),
    ],
)
def test_a_name_with_a_namespace_keeps_it(name: str, full: str) -> None:
    assert full_name("team", name) == full
    assert full_name("", name) == name
    assert in_namespace("team", full) == (bool(full) and "other" not in full)
    assert in_namespace("", full)


def test_a_list_shows_the_names_of_the_namespace(run: Any) -> None:
    from evenq.wire.stubs.evenq.v1 import admin_pb2

    topics, groups = admin_pb2.ListTopicsResponse(), admin_pb2.ListGroupsResponse()
    for name in ("team%orders", "other%orders", "orders"):
        topics.topics.add(topic=name)
        groups.groups.add(group=name)
    assert run("topic list -o name --namespace team", ListTopics=topics)[1] == "team%orders\n"
    assert run("group list -o name --namespace team", ListGroups=groups)[1] == "team%orders\n"
    assert run("topic list -o name", ListTopics=topics)[1].count("\n") == 3
