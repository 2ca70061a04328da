"""DescribeCaller: a user learns its own grants, and nothing of others."""

from __future__ import annotations

from typing import Any

from evenq.wire.stubs.evenq.v1 import admin_pb2

METHOD = "/evenq.v1.Admin/DescribeCaller"
GRANTS = "topic:orders-* publish; topic:orders-* consume; topic:calls publish; group:* *; cluster describe"


async def test_a_user_gets_its_grants(stage: Any) -> None:
    await stage.broker()
    request = admin_pb2.DescribeCallerRequest()
    response = await stage.as_user(GRANTS, METHOD, request, admin_pb2.DescribeCallerResponse)
    assert (response.user, response.admin, response.broker_name) == ("u", False, "a")
    assert [(one.resource, list(one.actions)) for one in response.grants] == [
        ("cluster", ["describe"]),
        ("group:*", ["consume", "create", "delete", "describe", "operate"]),
        ("topic:calls", ["describe", "publish"]),
        ("topic:orders-*", ["consume", "describe", "publish"]),
    ]


async def test_a_broker_without_users_names_none(stage: Any) -> None:
    await stage.broker()
    response = await stage.call(METHOD, admin_pb2.DescribeCallerRequest(), admin_pb2.DescribeCallerResponse)
    assert (response.user, response.admin, list(response.grants)) == ("", False, [])
