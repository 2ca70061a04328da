"""gRPC over HTTP/2 in plain Python: a pure protocol core, and asyncio around it.

Pure, bytes in and events out: `floods` `streams` `sending` `connection`, over `evenq.wire.http2`.
The gRPC mapping, pure too: `requests` (what a header block asks for), `messages` (length-prefixed messages, statuses).
On the loop: `calls` (one call and its handler), `protocol` (one connection), `server` (ports, TLS, caps, drain).
`docs/internals/front.md` tells how they fit and why they are as they are.
"""
