"""What tests against real processes share."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from evenq_proofs.clusters import cluster, shared_cluster  # noqa: F401 - fixtures
from evenq_proofs.nets import open_net

from evenq.wire.net import GrpcNet


@pytest.fixture
async def net() -> AsyncIterator[GrpcNet]:
    async with open_net() as net:
        yield net
