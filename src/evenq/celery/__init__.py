"""Celery and kombu on evenq: `import evenq.celery`, then `Celery(broker="evenq://127.0.0.1:8081")`.

The import registers the transports `evenq` and `evenqs` (TLS) with kombu; docs/guides/celery.md describes them.
Needs `evenq[celery]`; raises Unsupported without it.
"""

from __future__ import annotations

from typing import Any

from evenq.errors import Unsupported
from evenq.runtime.extras import sentence

__all__ = ["register"]

DRIVER = "evenq"
MODULE = "evenq.celery.transport"


def register() -> None:
    """Registers the transports with kombu. The import has done so; a second call does nothing."""
    try:
        from celery.signals import worker_init
        from kombu.transport import TRANSPORT_ALIASES
    except ModuleNotFoundError as error:
        raise Unsupported(sentence("evenq.celery", error)) from error
    TRANSPORT_ALIASES.setdefault("evenq", f"{MODULE}:EvenqTransport")
    TRANSPORT_ALIASES.setdefault("evenqs", f"{MODULE}:SecureEvenqTransport")
    worker_init.connect(_let_workers_talk, weak=False, dispatch_uid="evenq.celery")


def _let_workers_talk(**_: Any) -> None:
    """Enables mingle and gossip: Celery starts them only for the transports that it lists."""
    from celery.worker.consumer.gossip import Gossip
    from celery.worker.consumer.mingle import Mingle

    for step in (Gossip, Mingle):
        step.compatible_transports = {*step.compatible_transports, DRIVER}


register()
