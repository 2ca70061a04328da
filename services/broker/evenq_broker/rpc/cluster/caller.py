"""`evenq.v1.Admin/DescribeCaller`: the calling user and its grants, as this broker has them.

A user learns what it may do without trying it. The answer has nothing about other users, and no secret.
"""

from __future__ import annotations

from evenq.serving.auth.calls import rpc
from evenq.serving.auth.users import User
from evenq.serving.rpc import Rpc, RpcContext
from evenq.wire.stubs.evenq.v1 import admin_pb2
from evenq_broker.rpc.answers import OK, parsed
from evenq_broker.runtime import Runtime

METHOD = "/evenq.v1.Admin/DescribeCaller"


def rpcs(runtime: Runtime) -> list[Rpc]:
    async def describe(data: bytes, context: RpcContext) -> bytes:
        parsed(admin_pb2.DescribeCallerRequest, data)
        response = admin_pb2.DescribeCallerResponse(status=OK, broker_name=runtime.settings.broker_name)
        caller = context.caller
        if isinstance(caller, User):
            response.user, response.admin = caller.name, caller.unbound
            for resource, actions in caller.grants():
                response.grants.add(resource=resource, actions=actions)
        return response.SerializeToString()

    return [rpc(METHOD, describe)]
