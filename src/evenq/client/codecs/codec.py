"""The protocol of a codec: from the value of a program to the body of a message, and back.

A producer has one as its `encoder`; `evenq.decoded` uses one for the messages of a listener. A codec has no state that
calls change, apart from caches: threads share it.
"""

from __future__ import annotations

from typing import Protocol, TypeVar

Value = TypeVar("Value")


class Codec(Protocol[Value]):
    """Encoder and decoder of bodies."""

    def encode(self, value: Value, topic: str, /) -> bytes:
        """Returns the body. Raises BadRequest for a value that it cannot represent; never called twice per send."""
        ...

    def decode(self, body: bytes, topic: str, /) -> Value:
        """Returns the value. Raises `evenq.errors.InvalidBody` if the body is wrong, and will be wrong next time.

        Any other exception means that decoding is not possible now (a schema registry does not answer): `decoded`
        passes it on as a failure of the listener, and the message is redelivered.
        """
        ...
