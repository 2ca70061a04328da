"""Loops of the SDK: asyncio tasks that feed the cores, execute their commands, and make the calls of `rpc`."""
