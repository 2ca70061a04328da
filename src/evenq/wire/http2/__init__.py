"""HTTP/2 for gRPC in plain Python, without I/O: the client's side, and the parts shared with `evenq.serving.http2`.

Shared: `codes` (errors, statuses) `frames` `huffman` `hpack` `fields`. The client's own: `calling` (one connection, one
call at a time), `answers` (meaning of header blocks).
"""
