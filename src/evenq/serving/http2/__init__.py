"""gRPC over HTTP/2 in plain Python: a pure protocol core, and asyncio around it.

Pure, bytes in and events out: `limits` `streams` `sending` `connection`, over `evenq.wire.http2`. The gRPC mapping,
pure too: `requests` (meaning of a header block), `messages` (length-prefixed messages, statuses).
On the loop: `calls` (one call and its handler), `protocol` (one connection), `server` (ports, TLS, limits, drain).
`docs/internals/front.md` explains how they fit together and why.
"""
