"""The official Python SDK with `tls_enable`, through a forwarded port whose name is not advertised.

It trusts the authorities of gRPC only, so a company's own one is given by GRPC_DEFAULT_SSL_ROOTS_FILE_PATH; it can show no
certificate of its own, so it cannot use a broker with `tls.client_ca`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from evenq_proofs.forward import Forward
from evenq_proofs.peer import Peer

from evenq.testing import LocalCluster
from evenq.testing.certificates import Authority, here
from evenq.testing.free_ports import FreePorts

PEER = Path(__file__).with_name("python_sdk_peer.py")


def test_it_sends_and_receives_over_tls_and_never_leaves_it(tmp_path: Path, keep: Callable[[Peer], None]) -> None:
    authority = Authority(tmp_path / "tls")
    pair = authority.sign("server", hosts=here())
    with FreePorts() as ports:
        secure = ports.take()
        settings = {
            "TLS__PORT": str(secure), "TLS__CERTIFICATE": str(pair.certificate), "TLS__KEY": str(pair.key),
            "AUTO_CREATE_TOPICS": "true", "AUTO_CREATE_GROUPS": "true", "DEFAULT_START_FROM": "FIRST",
        }  # fmt: skip
        with (
            LocalCluster(rebalancer=False, folder=tmp_path / "cluster", broker_settings=settings),
            closing(Forward(secure)) as forward,
        ):
            environment = {**os.environ, "PEER_TLS": "1", "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(authority.ca)}

            def start(*words: str) -> Peer:
                command = [sys.executable, str(PEER), words[0], f"localhost:{forward.port}", *words[1:]]
                made = Peer(command, log_path=tmp_path / f"{words[0]}.log", environment=environment)
                keep(made)
                return made

            start("produce", "tls", "0", "30").wait_done()
            consumer = start("simple", "tls", "tls-g", "*", "30")
            consumer.wait_done()
            assert sorted(consumer.numbers()) == list(range(30))
