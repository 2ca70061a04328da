"""Nets of tests that close with their block."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from evenq.wire.net import GrpcNet


@asynccontextmanager
async def open_net(**options: Any) -> AsyncIterator[GrpcNet]:
    """A `GrpcNet`, made with `options`."""
    net = GrpcNet(**options)
    try:
        yield net
    finally:
        await net.close()
