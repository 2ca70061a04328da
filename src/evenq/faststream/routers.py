"""Routers: groups of subscribers and publishers that a broker includes, with a prefix for their topics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from faststream._internal.broker.router import ArgsContainer, BrokerRouter, SubscriberRoute
from faststream._internal.constants import EMPTY
from faststream.middlewares import AckPolicy

from evenq.faststream.configs import EvenqBrokerConfig
from evenq.faststream.deliveries import EvenqDelivery
from evenq.faststream.registrator import EvenqRegistrator

if TYPE_CHECKING:
    from fast_depends.dependencies import Dependant
    from faststream._internal.parser import CodecProto
    from faststream._internal.types import BrokerMiddleware, CustomCallable


class EvenqRoutePublisher(ArgsContainer):
    """A publisher of a route; takes the arguments of `EvenqBroker.publisher`."""

    def __init__(self, topic: str, **arguments: Any) -> None:
        super().__init__(topic, **arguments)


class EvenqRoute(SubscriberRoute):
    """A handler of a router; takes the arguments of `EvenqBroker.subscriber` after the handler."""

    def __init__(
        self, call: Callable[..., Any], *topics: str, publishers: Iterable[EvenqRoutePublisher] = (), **arguments: Any
    ) -> None:
        super().__init__(call, *topics, publishers=publishers, **arguments)


class EvenqRouter(EvenqRegistrator, BrokerRouter[EvenqDelivery, EvenqBrokerConfig]):
    """Subscribers and publishers to include in an `EvenqBroker`, or in another router."""

    def __init__(
        self,
        prefix: str = "",
        handlers: Iterable[EvenqRoute] = (),
        *,
        dependencies: Sequence[Dependant] = (),
        middlewares: Sequence[BrokerMiddleware[Any, Any]] = (),
        routers: Iterable[EvenqRegistrator] = (),
        parser: CustomCallable | None = None,
        decoder: CustomCallable | None = None,
        codec: CodecProto | None = None,
        ack_policy: AckPolicy = EMPTY,
        include_in_schema: bool | None = None,
    ) -> None:
        """`prefix` is put before all topics. The other arguments are defaults of the router's subscribers."""
        super().__init__(
            handlers=handlers,
            routers=routers,
            config=EvenqBrokerConfig(
                prefix=prefix,
                broker_middlewares=middlewares,
                broker_dependencies=dependencies,
                broker_parser=parser,
                broker_decoder=decoder,
                broker_codec=codec,
                ack_policy=ack_policy,
                include_in_schema=include_in_schema,
            ),
        )
