"""The Python SDK: producer, push consumer, simple consumer and admin, with a sync face here and an asyncio face in
`evenq.aio`.

`core` decides, `loops` does, `rpc` speaks. Importing this package is light: grpc and protobuf load at the first
call.
"""
