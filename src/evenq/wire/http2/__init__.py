"""HTTP/2 for gRPC in plain Python, without I/O: what the front of the servers (`evenq.serving.http2`) and the SDK's
blocking calls share, and the client's side of a connection.

Shared: `codes` (errors, statuses) `frames` `huffman` `hpack` `fields`. The client's own: `calling` (one connection, one
call at a time), `answers` (what header blocks and messages of an answer say).
"""
