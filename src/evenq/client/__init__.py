"""The Python SDK: producers, consumers and admin, with sync calls here and with asyncio in `evenq.aio`.

`core` decides without I/O, `loops` runs the decisions, `rpc` has the wire protocol. Importing this package is light:
grpc and protobuf are loaded at the first call.
"""
