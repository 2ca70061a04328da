"""TLS between real processes: a cluster that speaks nothing else, the doors of a broker seen through a forwarded port,
clients with and without certificates, files that change under load, the command line.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from evenq_proofs.command_line import evenq_process
from evenq_proofs.forward import Forward
from evenq_proofs.nets import open_net

import evenq
import evenq.aio
from evenq.errors import IllegalAccessPoint, SettingsError, TlsFailed
from evenq.testing.certificates import Authority, CertificatePair, here
from evenq.testing.free_ports import FreePorts
from evenq.testing.local_cluster import LocalCluster
from evenq.wire.net import GrpcNet
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2, service_pb2
from evenq.wire.tls import Tls

QUERY_ROUTE = "/apache.rocketmq.v2.MessagingService/QueryRoute"
OPEN = {"AUTO_CREATE_TOPICS": "true", "AUTO_CREATE_GROUPS": "true", "DEFAULT_START_FROM": "FIRST"}


def route(net: GrpcNet, address: str, topic: str, typed: tuple[str, int]) -> set[tuple[str, int]]:
    """Addresses that a client receives whose user typed `typed`; the call itself goes to `address`."""

    async def story() -> set[tuple[str, int]]:
        point = definition_pb2.Endpoints(addresses=[definition_pb2.Address(host=typed[0], port=typed[1])])
        request = service_pb2.QueryRouteRequest(topic=definition_pb2.Resource(name=topic), endpoints=point)
        try:
            raw = await net.unary(address, QUERY_ROUTE, request.SerializeToString(), timeout_ms=60_000)
        finally:
            await net.close()
        answer = service_pb2.QueryRouteResponse.FromString(raw)
        assert answer.status.code == definition_pb2.OK, answer.status
        places = (queue.broker.endpoints.addresses[0] for queue in answer.message_queues)
        return {(place.host, place.port) for place in places}

    return asyncio.run(story())


def sent_and_received(endpoint: str, topic: str, tls: Tls | bool | None, count: int = 20) -> None:
    with evenq.Admin(endpoint=endpoint, tls=tls) as admin:
        admin.create_group(f"{topic}-g", start_from="FIRST")
    with evenq.Producer(endpoint=endpoint, tls=tls) as producer:
        producer.send_batch(evenq.Message(topic=topic, body=b"%d" % number) for number in range(count))
    seen: set[bytes] = set()
    with evenq.SimpleConsumer(group=f"{topic}-g", subscriptions={topic: "*"}, endpoint=endpoint, tls=tls) as consumer:
        deadline = time.monotonic() + 60
        while len(seen) < count and time.monotonic() < deadline:
            for message in consumer.receive(max_messages=32, wait_ms=1_000):
                consumer.ack(message)
                seen.add(message.body)
    assert len(seen) == count


# ------------------------------------------------------------------------------------------------ doors (item 6)


@pytest.fixture(scope="module")
def doors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One broker with a plain, a TLS and two more doors, none of whose addresses anybody set."""
    folder = tmp_path_factory.mktemp("doors")
    authority = Authority(folder / "tls")
    pair = authority.sign("server", hosts=here())
    with FreePorts() as ports:
        names = ("default", "tls", "external", "partner")
        at = {name: ports.take() for name in names}
        settings = {
            **OPEN, "TLS__PORT": str(at["tls"]), "TLS__CERTIFICATE": str(pair.certificate), "TLS__KEY": str(pair.key),
            "LISTENERS": f"external=127.0.0.1:{at['external']},partner+tls=127.0.0.1:{at['partner']}",
            "ADVERTISE": "external=gate.example:30091",
        }  # fmt: skip
        with LocalCluster(
            rebalancer=False, folder=folder / "cluster", broker_ports=[at["default"]], broker_settings=settings
        ) as running:
            sent_and_received(running.endpoint, "doors", None, 4)
            yield running, at, authority


@pytest.mark.parametrize("typed", ["127.0.0.1", "localhost", "my-service.default.svc", "10.1.2.3"])
def test_a_client_is_told_addresses_of_the_door_it_came_through_whatever_it_typed(doors: Any, typed: str) -> None:
    _, at, authority = doors
    result = {
        name: route(GrpcNet(tls=tls), f"127.0.0.1:{at[name]}", "doors", (typed, 4711))
        for name, tls in (
            ("default", None), ("tls", Tls(ca=authority.ca)), ("external", None), ("partner", Tls(ca=authority.ca)),
        )
    }  # fmt: skip
    assert result == {
        "default": {("127.0.0.1", at["default"])},
        "tls": {("127.0.0.1", at["tls"])},
        "external": {("gate.example", 30_091)},
        "partner": {("127.0.0.1", at["partner"])},
    }


def test_through_a_forwarded_port_a_tls_client_stays_with_tls(doors: Any) -> None:
    _, at, authority = doors
    with closing(Forward(at["tls"])) as forward:
        net = GrpcNet(tls=Tls(ca=authority.ca))
        assert route(net, f"localhost:{forward.port}", "doors", ("localhost", forward.port)) == {
            ("127.0.0.1", at["tls"])
        }
        sent_and_received(f"evenqs://localhost:{forward.port}", "forwarded", Tls(ca=authority.ca))
        assert forward.connections >= 2


# ------------------------------------------------------------------------------------------------ TLS and nothing else


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LocalCluster, Tls]]:
    """Two brokers, two nameservers and two rebalancers with TLS among them, which let no client in without a
    certificate.
    """
    folder = tmp_path_factory.mktemp("secure")
    on = {"TLS__CLIENT_CA": str(folder / "tls" / "ca.pem"), "TLS__RELOAD_MS": "100"}
    cluster = LocalCluster(
        brokers=2, nameservers=2, rebalancers=2, folder=folder, tls=True, broker_settings={**OPEN, **on},
        nameserver_settings=on, rebalancer_settings=on,
    )  # fmt: skip
    assert cluster.authority is not None
    mine = cluster.authority.sign("client")
    with cluster:
        yield cluster, Tls(ca=cluster.authority.ca, certificate=mine.certificate, key=mine.key)


@pytest.mark.slow
def test_all_servers_know_each_other_over_tls_and_no_port_speaks_plain_text(
    secure: tuple[LocalCluster, Tls],
) -> None:
    cluster, tls = secure
    with evenq.Admin(endpoint=cluster.endpoint, tls=tls) as admin:
        deadline = time.monotonic() + 60
        while True:
            found = admin.describe_cluster()
            if sum(broker.answered for broker in found.brokers) == 2 and found.rebalancer_answers:
                break
            assert time.monotonic() < deadline, found
            time.sleep(0.1)
        assert all(address.startswith("evenqs://") for broker in found.brokers for address in broker.addresses)
        admin.create_topic("among", queues=2)
        admin.create_group("among-g", strategy="STICKY")
    for node in cluster.nodes:
        plain = node.address.removeprefix("evenqs://")

        async def call(address: str) -> None:
            async with open_net() as net:
                with pytest.raises(TlsFailed, match="speaks TLS and this side plain text"):
                    await net.unary(address, QUERY_ROUTE, b"", timeout_ms=3_000)

        asyncio.run(call(plain))


def test_every_kind_of_client_works_with_a_certificate(secure: tuple[LocalCluster, Tls]) -> None:
    cluster, tls = secure
    sent_and_received(cluster.endpoints, "kinds", tls, 40)
    pushed: set[bytes] = set()
    listen: Callable[[Any], None] = lambda messages: pushed.update(message.body for message in messages)  # noqa: E731
    with evenq.PushConsumer(
        group="kinds-push", listener=listen, subscriptions={"kinds": "*"}, endpoint=cluster.endpoint, tls=tls
    ):
        deadline = time.monotonic() + 60
        while len(pushed) < 40:
            assert time.monotonic() < deadline, len(pushed)
            time.sleep(0.05)
    with evenq.PullConsumer(
        group="kinds-pull", subscriptions={"kinds": "*"}, endpoint=cluster.endpoint, tls=tls
    ) as puller:
        pulled: set[bytes] = set()
        while len(pulled) < 40:
            assert time.monotonic() < deadline + 20
            pulled.update(message.body for message in puller.poll(wait_ms=1_000))

    async def faces() -> None:
        async with evenq.aio.Producer(endpoint=cluster.endpoint, tls=tls) as producer:
            assert (await producer.send(evenq.Message(topic="kinds", body=b"aio"))).message_id
        async with evenq.aio.Admin(endpoint=cluster.endpoint, tls=tls) as admin:
            assert "kinds" in {topic.topic for topic in await admin.list_topics()}
            await admin.create_topic("lites", message_type="LITE")
        async with evenq.aio.LiteSimpleConsumer(
            group="lites-g", topic="lites", lite_topics=["one"], endpoint=cluster.endpoint, tls=tls
        ) as lite:
            assert await lite.receive(wait_ms=100) == []

    asyncio.run(faces())


def test_without_a_certificate_nobody_gets_in_and_is_told_why(secure: tuple[LocalCluster, Tls]) -> None:
    cluster, tls = secure
    with pytest.raises(TlsFailed, match="requires a certificate of this side, which has none"):
        evenq.Admin(endpoint=cluster.endpoint, tls=Tls(ca=tls.ca)).list_topics()
    with pytest.raises(TlsFailed, match="not signed by the system's authorities"):
        evenq.Admin(endpoint=cluster.endpoint).list_topics()


@pytest.mark.slow  # certificates change again and again
def test_certificates_of_all_servers_change_under_load_and_no_send_fails(secure: tuple[LocalCluster, Tls]) -> None:
    cluster, tls = secure
    assert cluster.authority is not None
    broker = cluster.brokers[0]
    over, failures, counts = threading.Event(), [], {"sent": 0, "clients": 0}

    def load(*, fresh: bool) -> None:
        options = evenq.ProducerOptions(max_attempts=1)  # nothing is hidden by a retry
        try:
            while not over.is_set():
                with evenq.Producer(endpoint=cluster.endpoints, tls=tls, options=options) as producer:
                    counts["clients"] += 1
                    for number in range(5):
                        producer.send(evenq.Message(topic="rotation", body=b"%d" % number))
                        counts["sent"] += 1
                    while not fresh and not over.is_set():
                        producer.send(evenq.Message(topic="rotation", body=b"more"))
                        counts["sent"] += 1
        except Exception as error:  # noqa: BLE001  the test shows it
            failures.append(error)

    with evenq.Admin(endpoint=cluster.endpoint, tls=tls) as admin:
        admin.create_topic("rotation", queues=2)
    threads = [threading.Thread(target=load, kwargs={"fresh": fresh}) for fresh in (True, False)]
    for thread in threads:
        thread.start()
    try:
        for number in range(1, 6):
            cluster.authority.sign("server", hosts=here())
            sent, clients = counts["sent"], counts["clients"]

            def used(changes: int = number, sent: int = sent, clients: int = clients) -> bool:
                changed = broker.log_text().count("TLS certificate changed") >= changes
                return changed and counts["sent"] >= sent + 40 and counts["clients"] > clients

            deadline = time.monotonic() + 60
            while not used() and not failures:
                assert time.monotonic() < deadline, counts
                time.sleep(0.05)
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert failures == []


# ------------------------------------------------------------------------------------------------ how it is said


def evenq_command(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return evenq_process(*words, **environment)


@pytest.mark.slow
def test_the_command_line_says_it_by_flags_or_by_the_environment(secure: tuple[LocalCluster, Tls]) -> None:
    cluster, tls = secure
    plain = cluster.endpoint.removeprefix("evenqs://")
    flags = ["--tls-ca", str(tls.ca), "--tls-certificate", str(tls.certificate), "--tls-key", str(tls.key)]
    environment = {
        "EVENQ_ENDPOINT": f"127.0.0.1:1,{cluster.endpoint}",  # the first of the two is not there
        "EVENQ_TLS_CA": str(tls.ca), "EVENQ_TLS_CERTIFICATE": str(tls.certificate), "EVENQ_TLS_KEY": str(tls.key),
    }  # fmt: skip
    done = evenq_command("topic", "create", "spoken", "--endpoint", plain, *flags)
    assert done.returncode == 0, done.stderr
    done = evenq_command("produce", "spoken", "--body", "hello", **environment)
    assert done.returncode == 0, done.stderr
    done = evenq_command("consume", "spoken", "--group", "s", "--from", "first", "--max", "1", **environment)
    assert "hello" in done.stdout, done.stderr
    done = evenq_command("topic", "list", "--json", **environment)
    assert "spoken" in {topic["topic"] for topic in json.loads(done.stdout)}
    done = evenq_command("dlq", "list", **environment)
    assert done.returncode == 0, done.stderr
    done = evenq_command("topic", "list", "--endpoint", plain, "--tls-insecure", *flags[2:])
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("words", "given"),
    [
        (["--endpoint", "{plain}"], "speaks TLS and this side plain text; use evenqs://"),
        (["--endpoint", "{plain}", "--tls"], "not signed by the system's authorities"),
        (["--endpoint", "{plain}", "--tls-ca", "{ca}"], "requires a certificate of this side, which has none"),
        (["--endpoint", "{plain}", "--tls-ca", "{ca}", "--tls-server-name", "b.example"], "not for 'b.example'"),
        (["--endpoint", "evenq://{plain}", "--tls"], "is plain text, but a TLS option was given"),
        (["--endpoint", "{plain}", "--tls-ca", "{ca}.none"], "a TLS file cannot be read"),
        (["--endpoint", "{plain}", "--tls-key", "{ca}"], "certificate is empty; give both certificate and key"),
        (["--endpoint", "https://{plain}"], "unknown scheme"),
    ],
)
@pytest.mark.slow
def test_a_mistake_at_the_command_line_is_one_sentence(
    secure: tuple[LocalCluster, Tls], words: list[str], given: str
) -> None:
    cluster, tls = secure
    filled = [word.format(plain=cluster.endpoint.removeprefix("evenqs://"), ca=tls.ca) for word in words]
    for command in (["topic", "list"], ["produce", "x", "--body", "x"], ["dlq", "list"]):
        done = evenq_command(*command, *filled)
        assert done.returncode in {2, 5}
        assert given in done.stderr
        assert len(done.stderr.splitlines()) == 1, done.stderr


def test_the_sdk_finds_endpoint_and_tls_in_the_environment(
    secure: tuple[LocalCluster, Tls], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, tls = secure
    monkeypatch.setenv("EVENQ_ENDPOINT", cluster.endpoints.replace("evenqs://", ""))
    monkeypatch.setenv("EVENQ_TLS_CA", str(tls.ca))
    monkeypatch.setenv("EVENQ_TLS_CERTIFICATE", str(tls.certificate))
    monkeypatch.setenv("EVENQ_TLS_KEY", str(tls.key))
    sent_and_received("", "found", None)
    with pytest.raises(SettingsError, match="contradict each other"):
        evenq.Producer(endpoint="evenq://127.0.0.1:1", tls=True)
    with pytest.raises(IllegalAccessPoint, match="mixes"):
        evenq.Producer(endpoint="evenq://127.0.0.1:1,evenqs://127.0.0.1:2")


@pytest.mark.slow
def test_evenq_up_serves_tls_that_its_own_lines_explain(tmp_path: Path) -> None:
    with FreePorts() as ports:
        port = ports.take()
        up = subprocess.Popen(
            [sys.executable, "-m", "evenq.cli", "up", "--tls", "--port", str(port), "--metrics-port", "0"],
            stdout=subprocess.PIPE, text=True, cwd=tmp_path,
        )  # fmt: skip
        try:
            assert up.stdout is not None
            lines = []
            while not lines or "evenq commands" not in lines[-1]:
                lines.append(up.stdout.readline())
                assert lines[-1], lines
            assert lines[0].startswith(f"ready evenqs://127.0.0.1:{port} ")
            fields = dict(word.split("=", 1) for word in lines[-1].split() if "=" in word)
            sent_and_received(fields["EVENQ_ENDPOINT"], "up", Tls(ca=fields["EVENQ_TLS_CA"]))
            with pytest.raises(TlsFailed, match="speaks TLS"):
                evenq.Admin(endpoint=f"127.0.0.1:{port}").list_topics()
        finally:
            up.terminate()
            assert up.wait(60) == 0
            assert up.stdout is not None
            up.stdout.close()
        assert not Path(fields["EVENQ_TLS_CA"]).exists()


@pytest.mark.slow
def test_a_renamed_server_is_reached_by_the_name_in_its_certificate(tmp_path: Path) -> None:
    """As behind an address that the certificate does not name."""
    authority = Authority(tmp_path / "tls")
    pair: CertificatePair = authority.sign("server", hosts=["broker.example"])
    with FreePorts() as ports:
        settings = {
            **OPEN, "PORT": "-1", "TLS__PORT": str(ports.take()), "TLS__CERTIFICATE": str(pair.certificate),
            "TLS__KEY": str(pair.key),
        }  # fmt: skip
        with LocalCluster(nameservers=0, rebalancer=False, folder=tmp_path / "cluster", broker_settings=settings):
            endpoint = f"evenqs://127.0.0.1:{settings['TLS__PORT']}"
            with pytest.raises(TlsFailed, match=r"is for broker\.example, not for '127\.0\.0\.1'"):
                evenq.Admin(endpoint=endpoint, tls=Tls(ca=authority.ca)).list_topics()
            sent_and_received(endpoint, "renamed", Tls(ca=authority.ca, server_name="broker.example"))
            sent_and_received(endpoint, "pinned", Tls(insecure=True))
