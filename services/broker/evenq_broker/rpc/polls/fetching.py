"""Fetches messages from another broker whose message woke a parked poll, without waiting there.

The messages keep the handles of their broker, so any broker can forward acks and changes of the client
(`rpc.cluster.forwarding`). An answer is read completely before its first frame is sent on, so the client gets no error
if the other broker dies in between. Messages are given back there, uncounted, if the client does not read the answer to
its last frame, or if that is noticed later (`PassedOn`).
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
from evenq_broker.loops.state.kernel import Kernel
from evenq_broker.rpc.answers import OK_STATUS
from evenq_broker.rpc.cluster.forwarding import MARK, forward_stream
from evenq_broker.runtime import Runtime

log = logging.getLogger(__name__)

_CHANGE = "/apache.rocketmq.v2.MessagingService/ChangeInvisibleDuration"
_MESSAGE = b"\x12"
_TIME_TAG = 0x1A


class PassedOn:
    """Handles of another broker's messages that were sent to a client. Called if the client did not read them."""

    __slots__ = ("_address", "_request", "_runtime", "handles")

    def __init__(self, runtime: Runtime, address: str, request: service_pb2.ReceiveMessageRequest) -> None:
        self._runtime, self._address, self._request = runtime, address, request
        self.handles: list[str] = []

    def note(self, frame: bytes) -> None:
        """Takes one frame of the answer; only its handle is kept."""
        if frame[:1] == _MESSAGE:
            message = service_pb2.ReceiveMessageResponse.FromString(frame).message
            self.handles.append(message.system_properties.receipt_handle)

    def __call__(self) -> None:
        """Gives the messages back; the attempt does not count."""
        if self.handles:
            self._runtime.spawn(self.give_back(), name="give back")

    async def give_back(self) -> None:
        """Makes the messages ready again at their broker; returns when that is done."""
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
            except Error as error:  # the messages are redelivered after their invisible duration
                log.info("messages not returned to broker %s: %s", self._address, error.message)
                return


class Fetched:
    """The answer of another broker, with messages."""

    def __init__(self, fetching: _PeerFetch, source: str, frames: list[bytes]) -> None:
        self.source = source
        """Name of the other broker."""
        self._fetching = fetching
        self._frames = frames

    def give_back(self) -> None:
        """Gives the messages back in the background."""
        self._fetching.give_back(self._frames)

    async def given_back(self) -> None:
        """Gives the messages back; returns when their broker has them."""
        await self.passed_on().give_back()

    def passed_on(self) -> PassedOn:
        """Returns a function that gives the messages back if the client did not read them."""
        return self._fetching.passed_on(self._frames)

    async def frames(self) -> AsyncGenerator[bytes, None]:
        """Yields all frames. Closing it early gives the messages back."""
        complete = False
        try:
            for frame in self._frames:
                yield frame
            complete = True
        finally:
            if not complete:
                self._fetching.give_back(self._frames)


async def fetch(
    kernel: Kernel,
    source: str,
    request: service_pb2.ReceiveMessageRequest,
    context: RpcContext,
    *,
    cluster: ClusterLink,
) -> Fetched | None:
    """Returns messages of the broker `source` for this receive; None: it has none, or does not answer."""
    view = kernel.catalog.routes.broker(source)
    if view is None:
        return None
    fetching = _PeerFetch(kernel.runtime, cluster.peers.address_of(view), request)
    task = spawn(fetching.run(source, context), name=f"fetch from {source}")
    try:
        frames = await asyncio.shield(task)
    except asyncio.CancelledError:
        task.add_done_callback(lambda done: None if done.cancelled() else fetching.give_back(done.result()))
        raise
    return Fetched(fetching, source, frames) if frames else None


class _PeerFetch:
    def __init__(self, runtime: Runtime, address: str, request: service_pb2.ReceiveMessageRequest) -> None:
        self._runtime = runtime
        self._address = address
        self._request = request

    async def run(self, source: str, context: RpcContext) -> list[bytes]:
        """Returns the frames of an answer with messages; otherwise none."""
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
        if frames[-1][0] != _TIME_TAG:  # cut off: some SDKs would lose a batch without its end
            end = service_pb2.ReceiveMessageResponse()
            set_ms(end.delivery_timestamp, self._runtime.clock.now_ms())
            frames.append(end.SerializeToString())
        return frames

    def give_back(self, frames: list[bytes]) -> None:
        """Gives the messages back in the background."""
        self.passed_on(frames)()

    def passed_on(self, frames: list[bytes]) -> PassedOn:
        passed = PassedOn(self._runtime, self._address, self._request)
        for frame in frames:
            passed.note(frame)
        return passed
