"""Every net of ours has the shape of the Protocol, so that one may stand in for another."""

import inspect

import pytest
from evenq_proofs.loop_net import LoopNet

from evenq.runtime.net import Net
from evenq.wire.net import GrpcNet


@pytest.mark.parametrize("kind", [GrpcNet, LoopNet])
@pytest.mark.parametrize("name", ["unary", "stream", "close"])
def test_a_net_takes_what_the_protocol_says(kind, name):
    expected, found = (inspect.signature(getattr(one, name)).parameters for one in (Net, kind))
    assert [(p.name, p.kind, p.default) for p in found.values()] == [
        (p.name, p.kind, p.default) for p in expected.values()
    ]
