"""Clients that are in no pod: on the node beside the cluster's network, or on the machine behind a forwarded port."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from evenq_helm.kubernetes import ROOT, Kubernetes, wait_until

TOLD = """
import asyncio, json, os, sys
from evenq.runtime.clock import SystemClock
from evenq.wire.credentials import Credentials
from evenq.wire.net import GrpcNet
from evenq.wire.signed_net import SignedNet, Signer
from evenq.wire.status import check
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2, service_pb2 as pb

CONNECTIONS = 16

async def ask(address, topic):
    request = pb.QueryRouteRequest()
    request.topic.name = topic
    host, port = address.rsplit(":", 1)
    request.endpoints.scheme = definition_pb2.AddressScheme.IPv4
    request.endpoints.addresses.add(host=host, port=int(port))
    addresses = set()
    for _ in range(CONNECTIONS):
        net = GrpcNet()
        raw = await SignedNet(net, Signer.of(Credentials.of_environment(os.environ), SystemClock())).unary(
            address, "/apache.rocketmq.v2.MessagingService/QueryRoute", request.SerializeToString(), timeout_ms=60_000,
            metadata={"x-mq-client-id": "outside"},
        )
        await net.close()
        answer = pb.QueryRouteResponse.FromString(raw)
        check(answer.status)
        addresses |= {f"{at.host}:{at.port}" for queue in answer.message_queues for at in queue.broker.endpoints.addresses}
    print(json.dumps(sorted(addresses)))

asyncio.run(ask(*sys.argv[1:]))
"""
OFFICIAL = ROOT / "tests" / "compat" / "python_sdk_peer.py"
COUNT = 30


class Outside:
    """The command line and the official Python SDK of this machine, with one user's keys."""

    def __init__(self, kubernetes: Kubernetes, access_key: str, secret_key: str, *, on_the_node: bool = True) -> None:
        self._prefix = (str(kubernetes.folder / "node-exec"),) if on_the_node else ()
        self._environment = {
            **kubernetes.environment,
            "EVENQ_ACCESS_KEY": access_key,
            "EVENQ_SECRET_KEY": secret_key,
            "PEER_ACCESS_KEY": access_key,
            "PEER_SECRET_KEY": secret_key,
        }

    def tried(self, *command: str, endpoint: str) -> subprocess.CompletedProcess[str]:
        """`evenq COMMAND --endpoint ENDPOINT`, whatever its exit code is."""
        return self._run(str(Path(sys.executable).with_name("evenq")), *command, "--endpoint", endpoint)

    def evenq(self, *command: str, endpoint: str) -> str:
        """The same; what it printed."""
        done = self.tried(*command, endpoint=endpoint)
        assert done.returncode == 0, f"{command}: {done.stdout[-2_000:]}{done.stderr[-2_000:]}"
        return done.stdout

    def told(self, topic: str, endpoint: str) -> list[str]:
        """The addresses in the topic's route, as any client gets it there; none while a broker has none of it. Each of
        16 connections may lead to another one.
        """
        done = self._run(sys.executable, "-c", TOLD, endpoint, topic)
        addresses: list[str] = json.loads(done.stdout) if done.returncode == 0 else []
        return addresses

    def send_and_read(self, topic: str, endpoint: str) -> None:
        """The official SDK's messages are read by itself and by us, and ours by us; each once."""
        self.evenq("topic", "create", topic, "--queues", "2", endpoint=endpoint)
        # The SDK takes a route without queues for the last word.
        wait_until(lambda: bool(self.told(topic, endpoint)), 60, "all brokers have the topic in their route")
        self._official("produce", endpoint, topic, "0", str(COUNT))
        self.evenq("group", "create", f"{topic}-official", "--from", "FIRST", endpoint=endpoint)
        got = self._official("simple", endpoint, topic, f"{topic}-official", "*", str(COUNT))
        assert sorted(got) == list(range(COUNT))
        self.evenq("produce", topic, "--body", "ours-{n}", "--count", str(COUNT), endpoint=endpoint)
        read = (
            "consume",
            topic,
            "--group",
            topic,
            "--from",
            "first",
            "--max",
            str(2 * COUNT),
            "--idle",
            "20",
            "--json",
        )
        lines = [json.loads(line) for line in self.evenq(*read, endpoint=endpoint).splitlines() if line.startswith("{")]
        bodies = sorted(line["body"] for line in lines)
        assert len(bodies) == len(set(bodies)) == 2 * COUNT

    def _official(self, *words: str) -> list[int]:
        done = self._run(sys.executable, str(OFFICIAL), *words)
        assert done.returncode == 0, f"{words}: {done.stdout[-2_000:]}{done.stderr[-2_000:]}"
        output = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        assert output[-1] == {"done": True}
        return [line["got"] for line in output if "got" in line]

    def _run(self, *command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self._prefix, *command],
            env=self._environment, capture_output=True, text=True, timeout=120, check=False, cwd=ROOT,
        )  # fmt: skip
