"""A cluster as clients outside it see it: its brokers tell them one address for all (a load balancer, a node port) or
one for each, and what they tell inside leads nowhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from evenq.testing.free_ports import FreePorts
from evenq.testing.local_cluster import LocalCluster
from evenq_proofs.forward import Forward

NOWHERE = 1
BROKERS = 3


class Outside:
    """A running one."""

    def __init__(self, cluster: LocalCluster, front: Forward, ports: list[int]) -> None:
        self.cluster = cluster
        self.front = front
        self.ports = ports
        """Ports at which the brokers listen for clients outside."""

    @property
    def endpoint(self) -> str:
        """Leads to the next broker with each connection."""
        return f"127.0.0.1:{self.front.port}"


@contextmanager
def outside(
    folder: Path, *, users: str = "", each: bool = False, shared: bool = True, **broker_settings: str
) -> Iterator[Outside]:
    """Three brokers. `users`: a users file; empty = no authentication. `each`: every broker has an address of its own,
    else one leads to all. `shared`: the brokers are configured so.
    """
    auth: dict[str, str] = {}
    if users:
        (folder / "users.toml").write_text(users)
        auth = {"AUTH__ENABLED": "true", "AUTH__USERS": str(folder / "users.toml")}
    with ExitStack() as stack:
        ports = stack.enter_context(FreePorts())
        inside, outside = ([ports.take() for _ in range(BROKERS)] for _ in range(2))
        front = stack.enter_context(closing(Forward(*outside)))
        fronts = [stack.enter_context(closing(Forward(port))) for port in outside] if each else [front] * BROKERS

        def of_broker(index: int) -> dict[str, str]:
            return {
                "DEFAULT_START_FROM": "FIRST",
                "LISTENERS": f"external=127.0.0.1:{outside[index]}",
                "ADVERTISE": f"127.0.0.1:{NOWHERE},internal=127.0.0.1:{inside[index]},"
                f"external=127.0.0.1:{fronts[index].port}",
                "SHARED_LISTENERS": "" if each or not shared else "external",
                **auth,
                **broker_settings,
            }

        cluster = LocalCluster(
            brokers=BROKERS, folder=folder / "cluster", broker_ports=inside, broker_settings=of_broker,
            nameserver_settings=auth, rebalancer_settings=auth,
        )  # fmt: skip
        with cluster:
            yield Outside(cluster, front, outside)
