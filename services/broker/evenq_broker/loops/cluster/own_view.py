"""This broker's view of itself: sent to the nameservers and peers, and in its own route table."""

from __future__ import annotations

from evenq.runtime.version import software_version
from evenq_broker.core.cluster.routes import RegisteredBroker
from evenq_broker.loops.state.kernel import Kernel
from evenq_broker.loops.wire.translation import counts_of


class OwnView:
    """Cached view of one broker, made anew when its topics or addresses have changed."""

    def __init__(self, kernel: Kernel) -> None:
        self._runtime, self._catalog = kernel.runtime, kernel.catalog
        self.incarnation = f"{kernel.runtime.rng.getrandbits(64):016x}"
        """Random per start: distinguishes a restart from a twin with the same name."""
        self._view: RegisteredBroker | None = None

    def now(self) -> RegisteredBroker:
        """Returns the present view; one object until something changes."""
        runtime, topics = self._runtime, self._catalog.topics
        view, followers = self._view, runtime.leadership.followers()
        same = view is not None and view.data_version == topics.version and view.followers == followers
        if view is None or not same or view.addresses is not runtime.addresses:
            name, draining = runtime.settings.broker_name, self._catalog.draining
            view = self._view = RegisteredBroker(
                name=name,
                cluster=runtime.settings.cluster,
                epoch=runtime.leadership.epoch,
                incarnation=self.incarnation,
                addresses=runtime.addresses,
                version=software_version(),
                start_ms=runtime.started_ms,
                copies=runtime.leadership.copies,
                followers=followers,
                data_version=topics.version,
                topics={topic.name: counts_of(name, topic, draining=draining) for topic in topics.all()},
            )
        return view
