"""`EvenqBroker`: the broker object of a FastStream application."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from functools import partial
from operator import attrgetter
from types import TracebackType
from typing import TYPE_CHECKING, Any, Unpack, cast

from fast_depends import Provider, dependency_provider
from faststream._internal.broker import BrokerUsecase
from faststream._internal.constants import EMPTY
from faststream._internal.context.repository import ContextRepo
from faststream._internal.di import FastDependsConfig
from faststream._internal.logger import DefaultLoggerStorage, make_logger_state
from faststream._internal.logger.logging import get_broker_logger
from faststream.exceptions import SetupError
from faststream.message import gen_cor_id
from faststream.middlewares import AckPolicy
from faststream.response.publish_type import PublishType
from faststream.security import BaseSecurity, SASLPlaintext
from faststream.specification.schema import BrokerSpec

from evenq.aio import Admin, Producer
from evenq.client.loops.sending.outgoing import SendResult
from evenq.client.options import ProducerOptions
from evenq.client.wiring import ClientContext
from evenq.errors import Error, Forbidden
from evenq.faststream.commands import REQUEST_TIMEOUT_S, EvenqPublishCommand, FieldArguments, PublishFields
from evenq.faststream.configs import ClientArguments, EvenqBrokerConfig
from evenq.faststream.deliveries import EvenqDelivery
from evenq.faststream.messages import EvenqMessage
from evenq.faststream.producers import EvenqProducer
from evenq.faststream.registrator import EvenqRegistrator
from evenq.faststream.subscribers import EvenqSubscriber
from evenq.wire.credentials import Credentials
from evenq.wire.tls import Tls

if TYPE_CHECKING:
    from fast_depends.dependencies import Dependant
    from fast_depends.library.serializer import SerializerProto
    from faststream._internal.basic_types import LoggerProto
    from faststream._internal.parser import CodecProto
    from faststream._internal.types import BrokerMiddleware, CustomCallable, IdGenerator
    from faststream.specification.schema.extra import Tag, TagDict


PROTOCOL, PROTOCOL_VERSION = "rocketmq", "5"


class EvenqBroker(EvenqRegistrator, BrokerUsecase[EvenqDelivery, Producer, EvenqBrokerConfig]):
    """Connects handlers to topics. All its clients belong to the event loop in which it is started."""

    def __init__(
        self,
        endpoint: str = "",
        *,
        group: str = "",
        credentials: Credentials | None = None,
        tls: Tls | bool | None = None,
        producer_options: ProducerOptions | None = None,
        security: BaseSecurity | None = None,
        graceful_timeout: float | None = 15.0,
        ack_policy: AckPolicy = EMPTY,
        id_generator: IdGenerator = gen_cor_id,
        decoder: CustomCallable | None = None,
        codec: CodecProto | None = None,
        parser: CustomCallable | None = None,
        dependencies: Sequence[Dependant] = (),
        middlewares: Sequence[BrokerMiddleware[Any, Any]] = (),
        routers: Iterable[EvenqRegistrator] = (),
        specification_url: str | None = None,
        protocol: str = PROTOCOL,
        protocol_version: str = PROTOCOL_VERSION,
        description: str | None = None,
        tags: Iterable[Tag | TagDict] = (),
        logger: LoggerProto | None = EMPTY,
        log_level: int = logging.INFO,
        apply_types: bool = True,
        serializer: SerializerProto | None = EMPTY,
        provider: Provider | None = None,
        context: ContextRepo | None = None,
    ) -> None:
        """`endpoint`, `credentials` and `tls` are as in `evenq.aio.Producer`: without them the environment counts.
        `group`: the consumer group of subscribers that name none. `graceful_timeout`: seconds that a stop waits for
        running handlers, at most 60. `security` is SASLPlaintext with the access key and the secret key, instead of
        `credentials`; it also appears in AsyncAPI. The other arguments are those of all brokers of FastStream.
        """
        access = _access(endpoint, credentials, tls, security)
        self._producer_options = producer_options
        self._ping_failed = False
        super().__init__(
            routers=routers,
            config=EvenqBrokerConfig(
                access=access,
                group=group,
                producer=EvenqProducer(parser=parser, decoder=decoder),
                broker_middlewares=middlewares,
                broker_parser=parser,
                broker_decoder=decoder,
                broker_codec=codec,
                logger=make_evenq_logger_state(logger=logger, log_level=log_level),
                fd_config=FastDependsConfig(
                    use_fastdepends=apply_types,
                    serializer=serializer,
                    provider=provider or dependency_provider,
                    context=context or ContextRepo(),
                ),
                broker_dependencies=dependencies,
                graceful_timeout=graceful_timeout,
                ack_policy=ack_policy,
                id_generator=id_generator,
                extra_context={"broker": self},
            ),
            specification=BrokerSpec(
                url=[specification_url] if specification_url else _urls(access),
                protocol=protocol,
                protocol_version=protocol_version,
                description=description,
                tags=tags,
                security=security,
            ),
        )

    async def start(self) -> None:
        """Connects, and starts all subscribers. Raises SetupError if two of one group read different topics or filters:
        members of a group must have the same subscriptions (RG-8).
        """
        _check_groups(cast("list[EvenqSubscriber]", self.subscribers))
        await self.connect()
        await super().start()

    async def stop(
        self,
        exc_type: type[BaseException] | None = None,
        exc_val: BaseException | None = None,
        exc_tb: TracebackType | None = None,
    ) -> None:
        """Stops the subscribers, then sends what is pending and closes the connections."""
        await super().stop(exc_type, exc_val, exc_tb)
        if self._connection is not None:
            producer, self._connection = self._connection, None
            self._evenq_producer.disconnect()
            await producer.close()

    async def ping(self, timeout: float | None) -> bool:
        """Returns whether a broker of the cluster accepts this application's keys within `timeout` seconds; None: 3 s
        per attempt. The cause of a change to False is logged.
        """
        try:
            async with asyncio.timeout(timeout), Admin(**self.config.access.arguments()) as admin:
                await admin.list_brokers()
        except Forbidden:  # a known user, without the grant to list brokers, which publishing and reading do not need
            failure = ""
        except (Error, TimeoutError) as error:
            failure = str(error) or f"no broker answers within {timeout} s"
        else:
            failure = ""
        logger = self.config.logger
        if failure and not self._ping_failed and logger.logger:
            logger.log(f"ping fails: {failure}", logging.WARNING)
        self._ping_failed = bool(failure)
        return not failure

    async def publish(
        self,
        message: Any,
        topic: str,
        *,
        headers: dict[str, str] | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
        **fields: Unpack[FieldArguments],
    ) -> SendResult:
        """Sends a message, and returns when it is stored.

        `message` is encoded: bytes as they are, a text as text, anything else as JSON. `headers` become properties of
        the message, with texts as values. `reply_to`: the topic for the handler's result. `fields` are those of
        `evenq.Message`: `tag`, `keys`, `message_group`, `delivery_ms`, `delay`, `priority`, `lite_topic`, `message_id`.
        Raises as `evenq.aio.Producer.send`.
        """
        cmd = EvenqPublishCommand(
            message,
            topic=topic,
            headers=headers,
            correlation_id=correlation_id or self.config.id_generator(),
            reply_to=reply_to,
            fields=PublishFields(**fields),
            _publish_type=PublishType.PUBLISH,
        )
        return cast("SendResult", await self._basic_publish(cmd, producer=self._evenq_producer))

    async def publish_batch(  # type: ignore[override]  # its arguments are evenq's, as in every broker
        self,
        *messages: Any,
        topic: str,
        headers: dict[str, str] | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
        tag: str | None = None,
        message_group: str | None = None,
    ) -> list[SendResult]:
        """Sends many messages, and returns when all are stored. An `EvenqResponse` has headers and fields of its own.
        Raises as `evenq.aio.Producer.send_batch`.
        """
        if not messages:
            return []
        cmd = EvenqPublishCommand(
            *messages,
            topic=topic,
            headers=headers,
            correlation_id=correlation_id or self.config.id_generator(),
            reply_to=reply_to,
            fields=PublishFields(tag=tag, message_group=message_group),
            _publish_type=PublishType.PUBLISH,
        )
        return cast("list[SendResult]", await self._basic_publish_batch(cmd, producer=self._evenq_producer))

    async def request(  # type: ignore[override]  # as above
        self,
        message: Any,
        topic: str,
        *,
        headers: dict[str, str] | None = None,
        correlation_id: str | None = None,
        tag: str | None = None,
        keys: Sequence[str] = (),
        message_group: str | None = None,
        timeout: float = REQUEST_TIMEOUT_S,
    ) -> EvenqMessage:
        """Sends a request and returns the reply: the result of a handler, or of any SDK that replies.
        `await reply.decode()` is its body. Raises RequestTimeout after `timeout` seconds, and as `publish`.
        """
        cmd = EvenqPublishCommand(
            message,
            topic=topic,
            headers=headers,
            correlation_id=correlation_id or self.config.id_generator(),
            fields=PublishFields(tag=tag, keys=keys, message_group=message_group),
            timeout_s=timeout,
            _publish_type=PublishType.REQUEST,
        )
        return cast("EvenqMessage", await self._basic_request(cmd, producer=self._evenq_producer))

    @property
    def _evenq_producer(self) -> EvenqProducer:
        return cast("EvenqProducer", self.config.producer)

    async def _connect(self) -> Producer:
        producer = Producer(options=self._producer_options, **self.config.access.arguments())
        config = self.config
        self._evenq_producer.connect(producer, config.fd_config._serializer, config.broker_codec)  # noqa: SLF001
        return producer


def _access(
    endpoint: str, credentials: Credentials | None, tls: Tls | bool | None, security: BaseSecurity | None
) -> ClientArguments:
    if security is not None:
        if security.ssl_context is not None:
            raise SetupError("an ssl_context is not supported; give EvenqBroker(tls=evenq.Tls(ca=...))")
        if isinstance(security, SASLPlaintext):
            if credentials is not None:
                raise SetupError("credentials and security both have keys; give one of them")
            credentials = Credentials(access_key=security.username, secret_key=security.password)
        elif type(security) is not BaseSecurity:
            raise SetupError(
                f"{type(security).__name__} is not supported; give SASLPlaintext(username=ACCESS_KEY, "
                "password=SECRET_KEY), whose secret only signs the calls"
            )
        if security.use_ssl and tls is None:
            tls = True
    return ClientArguments(endpoint=endpoint, credentials=credentials, tls=tls)


def _urls(access: ClientArguments) -> list[str]:
    """Returns the access points for AsyncAPI. Raises IllegalAccessPoint, SettingsError."""
    endpoint = ClientContext.of(None, access.credentials, endpoint=access.endpoint, tls=access.tls).endpoint
    return endpoint.split(";")


def _check_groups(subscribers: Sequence[EvenqSubscriber]) -> None:
    first: dict[str, EvenqSubscriber] = {}
    for subscriber in sorted(subscribers, key=attrgetter("number")):
        other = first.setdefault(subscriber.group, subscriber)
        if subscriber.group and subscriber.subscriptions != other.subscriptions:
            one, two = (
                ", ".join(f"{topic} ({read.expression})" for topic, read in sorted(which.subscriptions.items()))
                for which in (other, subscriber)
            )
            raise SetupError(
                f"two subscribers of group {subscriber.group} read {one} and {two}: members of a group must have the "
                "same topics and filters. Give each a group of its own, or all topics to one subscriber, whose "
                "handlers choose with `filter=lambda message: message.topic == ...`"
            )


MESSAGE_ID_WIDTH = 10


class EvenqLoggerStorage(DefaultLoggerStorage):
    """Makes the default logger, with columns as wide as the longest topic and group."""

    def __init__(self) -> None:
        super().__init__()
        self._topic_width = len("topic")
        self._group_width = 0

    def register_subscriber(self, params: dict[str, Any]) -> None:
        """Called for each subscriber before the first log line."""
        self._topic_width = max(self._topic_width, len(params.get("topic", "")))
        self._group_width = max(self._group_width, len(params.get("group", "")))

    def get_logger(self, *, context: ContextRepo) -> LoggerProto:
        logger = self._get_logger_ref()
        if logger is None:
            logger = get_broker_logger(
                name="evenq",
                default_context={"topic": "", "group": ""},
                message_id_ln=MESSAGE_ID_WIDTH,
                fmt=f"%(asctime)s %(levelname)-8s - %(topic)-{self._topic_width}s | %(group)-{self._group_width}s | "
                f"%(message_id)-{MESSAGE_ID_WIDTH}s - %(message)s",
                context=context,
                log_level=self.logger_log_level,
            )
            self._logger_ref.add(logger)
        return logger


make_evenq_logger_state = partial(make_logger_state, default_storage_cls=EvenqLoggerStorage)
