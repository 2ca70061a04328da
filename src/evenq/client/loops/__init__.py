"""The SDK's doing: asyncio tasks that feed the cores and carry out what they say. Speaks to servers only through
`core.calls`.
"""
