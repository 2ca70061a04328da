"""Loops of the SDK: asyncio tasks that feed the cores, execute their commands, and use `core.calls`."""
