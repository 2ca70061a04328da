"""A parked poll that another broker's message woke: it fetches there, for its client, without waiting.

The messages keep the handles of the broker that has them, so acks, changes and forwards of the client find their way
from any broker (`rpc.cluster.forwarding`). An answer is read to its end before the first frame goes on, so a peer that
dies in the middle costs no client an error; and what the client does not take to the last frame is given back there,
uncounted; so is what it turns out not to have taken later (`PassedOn`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator

from evenq.errors import Error
from evenq.runtime.tasks import spawn
from evenq.serving.rpc import RpcContext
from evenq.wire.convert import set_duration_ms, set_ms
from evenq.wire.stubs.apache.rocketmq.v2 import service_pb2
from evenq_broker.loops.cluster.link import ClusterLink
from evenq_broker.loops.state.catalog import Catalog
from evenq_broker.rpc.answers import OK_STATUS
from evenq_broker.rpc.cluster.forwarding import MARK, forward_stream
from evenq_broker.runtime import Runtime

__all__ = ["Fetched", "PassedOn", "fetch"]

log = logging.getLogger(__name__)

_CHANGE = "/apache.rocketmq.v2.MessagingService/ChangeInvisibleDuration"
_MESSAGE = b"\x12"
_TIME_TAG = 0x1A


class PassedOn:
    """The handles of messages of another broker that went on to a client. Called when it did not take them."""

    __slots__ = ("_address", "_request", "_runtime", "handles")

    def __init__(self, runtime: Runtime, address: str, request: service_pb2.ReceiveMessageRequest) -> None:
        self._runtime, self._address, self._request = runtime, address, request
        self.handles: list[str] = []

    def note(self, frame: bytes) -> None:
        """One frame of the answer; only its handle is kept."""
        if frame[:1] == _MESSAGE:
            message = service_pb2.ReceiveMessageResponse.FromString(frame).message
            self.handles.append(message.system_properties.receipt_handle)

    def __call__(self) -> None:
        """The client saw nothing of it: the messages are ready again, and the attempt does not count."""
        if self.handles:
            self._runtime.spawn(self.give_back(), name="give back")

    async def give_back(self) -> None:
        """Make the messages ready again at their broker; returns when that is done."""
        request = service_pb2.ChangeInvisibleDurationRequest(suspend=True)
        request.group.CopyFrom(self._request.group)
        request.topic.CopyFrom(self._request.message_queue.topic)
        set_duration_ms(request.invisible_duration, 0)
        for handle in self.handles:
            request.receipt_handle = handle
            try:
                await self._runtime.net.unary(
                    self._address,
                    _CHANGE,
                    request.SerializeToString(),
                    timeout_ms=self._runtime.settings.peer_timeout_ms,
                    metadata={MARK: "1"},
                )
            except Error as error:  # the messages come again when their time is over
                log.info("messages not returned to broker %s: %s", self._address, error.message)
                return


class Fetched:
    """The answer of another broker that holds messages."""

    def __init__(self, fetching: _PeerFetch, source: str, frames: list[bytes]) -> None:
        self.source = source
        """Name of the broker."""
        self._fetching = fetching
        self._frames = frames

    def give_back(self) -> None:
        """No caller takes it."""
        self._fetching.give_back(self._frames)

    async def given_back(self) -> None:
        """No caller takes it; returns when its broker has it back."""
        await self.passed_on().give_back()

    def passed_on(self) -> PassedOn:
        """To be called if its caller did not take it, after all."""
        return self._fetching.passed_on(self._frames)

    async def frames(self) -> AsyncGenerator[bytes, None]:
        """All its frames. Closing it early gives the messages back."""
        complete = False
        try:
            for frame in self._frames:
                yield frame
            complete = True
        finally:
            if not complete:
                self._fetching.give_back(self._frames)


async def fetch(
    runtime: Runtime,
    catalog: Catalog,
    source: str,
    request: service_pb2.ReceiveMessageRequest,
    context: RpcContext,
    *,
    cluster: ClusterLink,
) -> Fetched | None:
    """What the broker `source` has for this receive; None if it has nothing, or does not answer."""
    view = catalog.routes.broker(source)
    if view is None:
        return None
    fetching = _PeerFetch(runtime, cluster.peers.address_of(view), request)
    task = spawn(fetching.run(source, context), name=f"fetch from {source}")
    try:
        frames = await asyncio.shield(task)
    except asyncio.CancelledError:
        task.add_done_callback(lambda done: None if done.cancelled() else fetching.give_back(done.result()))
        raise
    return Fetched(fetching, source, frames) if frames else None


class _PeerFetch:
    """One receive at another broker."""

    def __init__(self, runtime: Runtime, address: str, request: service_pb2.ReceiveMessageRequest) -> None:
        self._runtime = runtime
        self._address = address
        self._request = request

    async def run(self, source: str, context: RpcContext) -> list[bytes]:
        """The frames of a good answer; none if there are no messages."""
        request = service_pb2.ReceiveMessageRequest()
        request.CopyFrom(self._request)
        request.message_queue.broker.name = source
        request.message_queue.id = -1
        set_duration_ms(request.long_polling_timeout, 0)
        frames: list[bytes] = []
        try:
            async for frame in forward_stream(self._runtime, self._address, request.SerializeToString(), context):
                frames.append(frame)
                if frames[0] != OK_STATUS:
                    return []
        except Error as error:
            log.info("fetch of messages at broker %s failed: %s", source, error.message, extra={"peer": source})
        if len(frames) < 2:
            return []
        if frames[-1][0] != _TIME_TAG:  # cut off: a batch without its end would be lost by some SDKs
            end = service_pb2.ReceiveMessageResponse()
            set_ms(end.delivery_timestamp, self._runtime.clock.now_ms())
            frames.append(end.SerializeToString())
        return frames

    def give_back(self, frames: list[bytes]) -> None:
        """No client takes it."""
        self.passed_on(frames)()

    def passed_on(self, frames: list[bytes]) -> PassedOn:
        """The handles of this answer."""
        passed = PassedOn(self._runtime, self._address, self._request)
        for frame in frames:
            passed.note(frame)
        return passed
