"""Route of a topic: its queues, brokers and addresses, as nameservers return it (RT-1 to RT-7)."""

from dataclasses import dataclass

from evenq.model.queue import MessageQueue
from evenq.model.topic import MessageType, Permission


@dataclass(frozen=True, slots=True)
class Listener:
    """One listener of a server: calls through it are answered with addresses of listeners with the same name."""

    name: str
    """`default` (plain text), `tls`, or a name of the setting `listeners`."""
    tls: bool = False


PLAIN_LISTENER = Listener("default")
TLS_LISTENER = Listener("tls", tls=True)
WILDCARDS = frozenset({"0.0.0.0", "::", ""})  # nosec B104 - hosts that mean all addresses of a machine, only compared


@dataclass(frozen=True, slots=True, order=True)
class BrokerAddress:
    """One address of a broker."""

    listener: str
    """Name of the listener: `default`, `internal`, `external` ..."""
    host: str
    port: int
    tls: bool = False

    @property
    def target(self) -> str:
        """`host:port`, as gRPC channels take it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def address(self) -> str:
        """As a `Net` takes it: `evenqs://host:port` with TLS, otherwise `host:port`."""
        return f"evenqs://{self.target}" if self.tls else self.target


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRoute:
    """One live broker of the cluster, identified by its name, never by an address."""

    broker_name: str
    broker_id: int
    """0 = master (RT-4)."""
    cluster: str
    epoch: int
    """Leader epoch; the highest one seen for a name wins."""
    addresses: tuple[BrokerAddress, ...]
    """At least one; the first is the default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueCounts:
    """A topic on one broker name (RT-3)."""

    broker_name: str
    read_queues: int
    write_queues: int
    permission: Permission
    message_type: MessageType
    chosen: bool = False
    """See `TopicConfig.chosen`."""
    uid: str = ""
    """See `TopicConfig.uid`; empty: not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRoute:
    """A topic on all brokers that serve it, in ascending broker name."""

    topic: str
    version: int
    """Grows with each change of the topic's route at one nameserver."""
    queues: tuple[QueueCounts, ...]
    brokers: tuple[BrokerRoute, ...]

    def readable(self) -> list[MessageQueue]:
        """Returns the message queues that consumers read, sorted."""
        return [
            MessageQueue(self.topic, counts.broker_name, queue_id)
            for counts in self.queues
            if counts.permission.readable
            for queue_id in range(counts.read_queues)
        ]

    def writable(self) -> list[MessageQueue]:
        """Returns the message queues that producers write, sorted."""
        return [
            MessageQueue(self.topic, counts.broker_name, queue_id)
            for counts in self.queues
            if counts.permission.writable
            for queue_id in range(counts.write_queues)
        ]
