"""A real cluster for tests: one process per server, on free loopback ports, with data folders. Linux and macOS.

    with LocalCluster(brokers=2) as cluster:
        producer = evenq.Producer(endpoint=cluster.endpoint)
        cluster.brokers[0].kill()
        cluster.brokers[0].restart()

Works as `with` and as `async with`. It starts programs by their module name and imports none of them. It ends the
processes that it started, by pid, also when the test fails; then the folder with data and logs is kept.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from evenq.errors import BadRequest, RequestTimeout
from evenq.testing.certificates import Authority, here
from evenq.testing.free_ports import FreePorts
from evenq.testing.node import Node
from evenq.wire.tls import Tls

__all__ = ["LocalCluster"]

REBALANCERS_MAX = 9
REPLICAS_MAX = 9
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


class LocalCluster:
    """Nameservers, brokers and rebalancers as processes."""

    def __init__(
        self,
        *,
        brokers: int = 1,
        replicas: int = 1,
        nameservers: int = 1,
        rebalancer: bool = True,
        rebalancers: int = 1,
        folder: Path | None = None,
        broker_ports: Sequence[int] = (),
        broker_settings: Mapping[str, str] | Callable[[int], Mapping[str, str]] | None = None,
        nameserver_settings: Mapping[str, str] | None = None,
        rebalancer_settings: Mapping[str, str] | None = None,
        tls: bool = False,
        metrics_port: int = 0,
        front: str = "",
        ready_ms_max: int = 60_000,
    ) -> None:
        """`folder` keeps data and logs; None creates one that is removed after a clean end.

        With `replicas` each broker is a group of that number of processes, of which one leads (`broker-a-0`,
        `broker-a-1` ...); `brokers` lists all of them, group by group, and the group record is a file in `folder`.
        `broker_ports` are the ports of the first ones; the others get free ones. Of several `rebalancers` one leads, by
        a lease in `folder`; `rebalancer` False: none.

        Settings are environment names without their prefix, e.g. `{"STORE__FLUSH": "sync"}`; those of brokers may be
        computed from the number of each. `tls`: all servers use only TLS, also among each other; clients need
        `client_tls` (requires `evenq[tls]`). `front`: `grpcio` or `http2`, for all servers; empty = EVENQ_TEST_FRONT,
        or their default. `metrics_port`: that of the first broker, 0 = any free one, the others get free ones; -1 = no
        server has a page.
        """
        if not 1 <= brokers <= len(_LETTERS):
            raise BadRequest(f"brokers={brokers} is outside 1 to {len(_LETTERS)}.")
        if not 1 <= replicas <= REPLICAS_MAX:
            raise BadRequest(f"replicas={replicas} is outside 1 to {REPLICAS_MAX}.")
        if nameservers < 0:
            raise BadRequest(f"nameservers={nameservers} is negative.")
        self._ports = FreePorts()
        self._own_folder = folder is None
        self.folder = Path(tempfile.mkdtemp(prefix="evenq-")) if folder is None else folder
        (self.folder / "logs").mkdir(parents=True, exist_ok=True)
        self._ready_ms_max = ready_ms_max
        self.authority = Authority(self.folder / "tls") if tls else None
        """With `tls`: signs certificates, e.g. for clients."""
        self._server = self.authority.sign("server", hosts=here()) if self.authority is not None else None
        self._metrics_port = metrics_port
        self._front = front or os.environ.get("EVENQ_TEST_FRONT", "")
        extra = dict(nameserver_settings or {})
        self.nameservers = [self._node("nameserver", f"nameserver-{index}", 0, extra) for index in range(nameservers)]
        if not 1 <= rebalancers <= REBALANCERS_MAX:
            raise BadRequest(f"rebalancers={rebalancers} is outside 1 to {REBALANCERS_MAX}.")
        self._lease = self.folder / "rebalancer.lease"
        extra = {"LEASE": f"file:{self._lease}" if rebalancers > 1 else "", **(rebalancer_settings or {})}
        names = [f"rebalancer-{index}" if index else "rebalancer" for index in range(rebalancers if rebalancer else 0)]
        self.rebalancers = [self._node("rebalancer", name, 0, extra) for name in names]
        count = brokers * replicas
        ports = [*broker_ports, *([0] * count)][:count]
        of_broker = broker_settings if callable(broker_settings) else lambda _: broker_settings or {}
        self.brokers: list[Node] = []
        for letter in _LETTERS[:brokers]:
            for copy in self._copies(letter, replicas):
                index = len(self.brokers)
                self.brokers.append(self._broker(letter, ports[index], {**copy, **of_broker(index)}))

    @property
    def endpoint(self) -> str:
        """Access point for clients: the first broker, with `evenqs://` if `tls`. Every broker is an access point."""
        return self.brokers[0].address

    @property
    def endpoints(self) -> str:
        """All brokers, joined with `;`."""
        return ";".join(broker.address for broker in self.brokers)

    @property
    def client_tls(self) -> Tls | None:
        """`tls=` of clients; None without `tls`."""
        return Tls(ca=self.authority.ca) if self.authority is not None else None

    @property
    def rebalancer(self) -> Node | None:
        """The first rebalancer; None if there is none."""
        return self.rebalancers[0] if self.rebalancers else None

    @property
    def nodes(self) -> list[Node]:
        """All servers in the order of their start."""
        return [*self.nameservers, *self.rebalancers, *self.brokers]

    def start(self) -> None:
        """Starts all servers and waits until they are ready. After an error, ends them and raises it."""
        atexit.register(self.kill)
        self._lease.unlink(missing_ok=True)  # of a killed cluster: no server has to wait for its end
        try:
            for node in self.nodes:
                node.start()
            self.wait_ready()
        except BaseException:
            self.kill()
            raise

    def wait_ready(self) -> None:
        """Waits until every server is ready."""
        for node in self.nodes:
            node.wait_ready(timeout_ms=self._ready_ms_max)

    def stop(self, *, keep: bool = False) -> None:
        """Stops all servers in order (brokers first). Removes a folder that the cluster created, unless `keep`.

        Raises RequestTimeout, after killing all, if a server hangs.
        """
        hung: list[str] = []
        for node in reversed(self.nodes):
            try:
                node.resume()
                node.stop()
            except RequestTimeout as error:
                hung.append(error.message)
        self.kill()
        if hung:
            raise RequestTimeout("; ".join(hung))
        if self._own_folder and not keep:
            shutil.rmtree(self.folder, ignore_errors=True)

    def pause(self, node: Node) -> None:
        """Pauses as `Node.pause`, but not while the server has the lock of a file that servers share here (group
        records, the rebalancers' lease): all of them would wait for it, which no real fault causes.
        """
        node.pause(without=sorted(self.folder.glob("*.lock")))

    def kill(self) -> None:
        """Sends SIGKILL to all running servers. Idempotent."""
        atexit.unregister(self.kill)
        for node in self.nodes:
            node.kill()
        self._ports.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave(error)

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self.start)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self._leave, error)

    def _leave(self, error: BaseException | None) -> None:
        if error is None:
            self.stop()
            return
        self.kill()
        error.add_note(f"Data and logs of the cluster: {self.folder}")

    def _copies(self, letter: str, replicas: int) -> list[dict[str, str]]:
        """Returns the settings of each copy of a group beside those of every broker; none for a single copy."""
        if replicas == 1:
            return [{}]
        members = ",".join(f"{number}=127.0.0.1:{self._ports.take()}" for number in range(replicas))
        return [
            {
                "REPLICATION__MEMBERS": members,
                "REPLICATION__BROKER_ID": str(number),
                "REPLICATION__MIN_IN_SYNC": str(replicas // 2 + 1),
                "REPLICATION__RECORD": f"file:{self.folder / f'broker-{letter}.group'}",
            }
            for number in range(replicas)
        ]

    def _broker(self, letter: str, port: int, settings: Mapping[str, str]) -> Node:
        name = f"broker-{letter}"
        copy = settings.get("REPLICATION__BROKER_ID")
        name = name if copy is None else f"{name}-{copy}"
        extra = {
            "BROKER_NAME": f"broker-{letter}",
            "NAMESERVERS": ",".join(node.address for node in self.nameservers),
            "REBALANCER": ",".join(node.address for node in self.rebalancers),
            "STORE__PATH": str(self.folder / name),
            **settings,
        }
        return self._node("broker", name, port, extra)

    def _node(self, program: str, name: str, port: int, settings: Mapping[str, str]) -> Node:
        port = port or self._ports.take()
        first = program == "broker" and name in {f"broker-{_LETTERS[0]}", f"broker-{_LETTERS[0]}-0"}
        metrics_port = self._metrics_port if self._metrics_port < 0 or (first and self._metrics_port) else 0
        metrics_port = metrics_port or self._ports.take()
        values = {
            "HOST": "127.0.0.1",
            "PORT": str(port),
            "METRICS_PORT": str(metrics_port),
            "FRONT": self._front,
            **self._tls_settings(port),
            **settings,
        }
        prefix = f"EVENQ_{program.upper()}_"
        environment = {prefix + key: value for key, value in values.items() if value}
        log_path = self.folder / "logs" / f"{name}.log"
        return Node(
            f"evenq_{program}",
            name=name,
            port=port,
            metrics_port=metrics_port,
            log_path=log_path,
            environment=environment,
            tls=self.authority is not None,
            peer_port=_peer_port(settings),
        )

    def _tls_settings(self, port: int) -> dict[str, str]:
        if self.authority is None or self._server is None:
            return {}
        return {
            "PORT": "-1",
            "TLS__PORT": str(port),
            "TLS__CERTIFICATE": str(self._server.certificate),
            "TLS__KEY": str(self._server.key),
            "TLS__PEERS": "true",
            "TLS__PEER_CA": str(self.authority.ca),
        }


def _peer_port(settings: Mapping[str, str]) -> int:
    """Where a copy answers the others, by its settings; 0: it is alone."""
    members = dict(part.split("=", 1) for part in settings.get("REPLICATION__MEMBERS", "").split(",") if part)
    own = members.get(settings.get("REPLICATION__BROKER_ID", ""), "")
    return int(own.rpartition(":")[2] or 0)
