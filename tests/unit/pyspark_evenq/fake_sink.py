"""What a broker of `conftest` is called by the sink: staged rows and decisions, published and sent messages."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import grpc

from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2, service_pb2
from evenq.wire.stubs.evenq.v1 import data_pb2, staging_pb2

OK = definition_pb2.Status(code=definition_pb2.Code.OK)
REFUSED = definition_pb2.Status(code=definition_pb2.Code.BAD_REQUEST, message="refused by the test")


class FakeSink:
    """Requests as they came; `refuses` says which of them are refused."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.begun: list[staging_pb2.BeginRequest] = []
        self.staged: list[staging_pb2.StageRequest] = []
        self.decided: list[staging_pb2.DecideRequest] = []
        self.abandoned: list[staging_pb2.AbandonRequest] = []
        self.published: list[data_pb2.PublishRequest] = []
        self.sent: list[service_pb2.SendMessageRequest] = []
        self.last_batches: dict[str, int] = {}
        """By query: the last one that is decided."""
        self.refuses: Callable[[Any], bool] = lambda _: False
        self.refuses_entry: Callable[[Any], bool] = lambda _: False
        """Of one message of a send that is accepted as a whole."""
        self._lock = threading.Lock()

    def handlers(self) -> dict[str, Any]:
        calls: dict[str, tuple[Any, Callable[[Any], Any]]] = {
            "/evenq.v1.Staging/Begin": (staging_pb2.BeginRequest, self._begin),
            "/evenq.v1.Staging/Stage": (staging_pb2.StageRequest, self._stage),
            "/evenq.v1.Staging/Decide": (staging_pb2.DecideRequest, self._decide),
            "/evenq.v1.Staging/Abandon": (staging_pb2.AbandonRequest, self._abandon),
            "/evenq.v1.Data/Publish": (data_pb2.PublishRequest, self._publish),
            "/apache.rocketmq.v2.MessagingService/SendMessage": (service_pb2.SendMessageRequest, self._send),
        }
        return {method: grpc.unary_unary_rpc_method_handler(self._call(*call)) for method, call in calls.items()}

    @property
    def messages(self) -> list[definition_pb2.Message]:
        """Of both ways without a decision."""
        return [message for request in (*self.published, *self.sent) for message in request.messages]

    def _call(self, request: Any, answer: Callable[[Any], Any]) -> Callable[[bytes, Any], bytes]:
        def call(encoded: bytes, _context: Any) -> bytes:
            with self._lock:
                return bytes(answer(request.FromString(encoded)).SerializeToString())

        return call

    def _status(self, request: Any) -> definition_pb2.Status:
        return REFUSED if self.refuses(request) else OK

    def _begin(self, request: staging_pb2.BeginRequest) -> staging_pb2.BeginResponse:
        self.begun.append(request)
        decided = request.batch_id <= self.last_batches.get(request.query_id, -1)
        return staging_pb2.BeginResponse(status=self._status(request), coordinator=self._name, decided=decided)

    def _stage(self, request: staging_pb2.StageRequest) -> staging_pb2.StageResponse:
        self.staged.append(request)
        return staging_pb2.StageResponse(status=self._status(request))

    def _decide(self, request: staging_pb2.DecideRequest) -> staging_pb2.DecideResponse:
        self.decided.append(request)
        last = self.last_batches.get(request.query_id, -1)
        already, self.last_batches[request.query_id] = request.batch_id <= last, max(request.batch_id, last)
        return staging_pb2.DecideResponse(status=self._status(request), already=already)

    def _abandon(self, request: staging_pb2.AbandonRequest) -> staging_pb2.AbandonResponse:
        self.abandoned.append(request)
        return staging_pb2.AbandonResponse(status=self._status(request))

    def _publish(self, request: data_pb2.PublishRequest) -> data_pb2.PublishResponse:
        self.published.append(request)
        return data_pb2.PublishResponse(status=self._status(request))

    def _send(self, request: service_pb2.SendMessageRequest) -> service_pb2.SendMessageResponse:
        self.sent.append(request)
        entries = [
            service_pb2.SendResultEntry(status=REFUSED if self.refuses_entry(message) else OK)
            for message in request.messages
        ]
        return service_pb2.SendMessageResponse(status=self._status(request), entries=entries)
