"""TLS of a server with real handshakes: who is let in, files that change under load, every mistake by its sentence."""

import asyncio
import logging
import socket
from pathlib import Path
from typing import Any

import pytest
from evenq_proofs.rpcs import fake_rpc
from evenq_proofs.waiting import until_async

from evenq.errors import ConnectionFailed, Error, SettingsError, TlsFailed
from evenq.runtime.clock import SystemClock
from evenq.serving.front.grpc_servers import GrpcServers, open_grpc_servers, usual_addresses
from evenq.serving.grpc_server_options import GrpcServerOptions
from evenq.serving.rpc import RpcContext
from evenq.serving.tls import TlsSettings
from evenq.testing.certificates import Authority, CertificatePair
from evenq.wire.net import GrpcNet
from evenq.wire.stubs.evenq.v1 import registry_pb2
from evenq.wire.tls import Tls

METHOD = "/evenq.v1.Registry/Heartbeat"
HERE = ("localhost", "127.0.0.1")


async def echo(request: bytes, context: RpcContext) -> bytes:
    return f"{context.listener.name} {context.listener.tls} ".encode() + request


RPC = fake_rpc(METHOD, echo, registry_pb2.RegistryHeartbeatResponse)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "authority")


def settings(pair: CertificatePair, **more: Any) -> TlsSettings:
    return TlsSettings(port=0, certificate=pair.certificate, key=pair.key, **more)


FRONT: Any = "grpcio"


@pytest.fixture(autouse=True, params=["grpcio", "http2"])
def front(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """TLS is the same at both fronts."""
    monkeypatch.setattr(request.module, "FRONT", request.param)


async def opened(tls: TlsSettings, port: int = -1) -> GrpcServers:
    places = usual_addresses("127.0.0.1", port, tls)
    return await open_grpc_servers([RPC], places, tls, clock=SystemClock(), options=GrpcServerOptions(front=FRONT))


async def said(net: GrpcNet, address: str) -> str:
    return (await net.unary(address, METHOD, b"hello", timeout_ms=60_000)).decode()


async def until_let_in(address: str, tls: Tls) -> None:
    """Wait until a new client with these files gets in: the server has read its own files again."""
    async with asyncio.timeout(60):
        while True:
            net = GrpcNet(tls=tls)
            try:
                assert await said(net, address)
            except ConnectionFailed:
                await asyncio.sleep(0.02)
            else:
                return
            finally:
                await net.close()


async def refused(net: GrpcNet, address: str) -> str:
    with pytest.raises(TlsFailed) as error:
        await said(net, address)
    await net.close()
    return str(error.value)


# ------------------------------------------------------------------------------------------------ who is let in


async def test_a_call_over_tls_knows_its_door_beside_plain_text(authority: Authority) -> None:
    doors = await opened(settings(authority.sign("server", hosts=HERE)), port=0)
    trusting, plain = GrpcNet(tls=Tls(ca=authority.ca)), GrpcNet()
    try:
        assert await said(trusting, f"localhost:{doors.port_of('tls')}") == "tls True hello"
        assert await said(trusting, f"evenq://localhost:{doors.port}") == "default False hello"
        assert await said(plain, f"127.0.0.1:{doors.port}") == "default False hello"
        assert sum(doors.stats()[METHOD].buckets) == 3
    finally:
        await trusting.close()
        await plain.close()
        await doors.stop()


async def test_a_name_of_the_clients_choice_and_a_certificate_that_is_pinned_get_in(authority: Authority) -> None:
    doors = await opened(settings(authority.sign("server", hosts=["broker.example"])))
    address = f"evenqs://127.0.0.1:{doors.port}"
    nets = [
        GrpcNet(tls=Tls(ca=authority.ca, server_name="broker.example")),
        GrpcNet(tls=Tls(insecure=True)),
    ]
    try:
        for net in nets:
            assert await said(net, address) == "tls True hello"
    finally:
        for net in nets:
            await net.close()
        await doors.stop()


async def test_with_an_authority_for_clients_only_those_it_signed_get_in(authority: Authority, tmp_path: Path) -> None:
    doors = await opened(settings(authority.sign("server", hosts=HERE), client_ca=authority.ca))
    mine, old = authority.sign("client"), authority.sign("old", days=(-9, -1))
    foreign = Authority(tmp_path / "foreign").sign("client")
    address = f"127.0.0.1:{doors.port}"
    invited = GrpcNet(tls=Tls(ca=authority.ca, certificate=mine.certificate, key=mine.key))
    try:
        assert await said(invited, address) == "tls True hello"
        unknown = await refused(GrpcNet(tls=Tls(ca=authority.ca)), address)
        assert f"{address} requires a certificate of this side, which has none" in unknown
        assert "EVENQ_TLS_CERTIFICATE" in unknown
        for pair in (foreign, old):
            tls = Tls(ca=authority.ca, certificate=pair.certificate, key=pair.key)
            response = await refused(GrpcNet(tls=tls), address)
            assert f"{address} rejects the certificate {pair.certificate}" in response
            assert "tls.client_ca" in response
    finally:
        await invited.close()
        await doors.stop()


# ------------------------------------------------------------------------------------------------ mistakes


async def test_each_mistake_of_a_client_is_a_sentence_that_names_the_fix(authority: Authority, tmp_path: Path) -> None:
    foreign = Authority(tmp_path / "foreign")
    doors = {
        "here": await opened(settings(authority.sign("here", hosts=HERE)), port=0),
        "there": await opened(settings(authority.sign("there", hosts=["b.example", "10.0.0.1"]))),
        "old": await opened(settings(authority.sign("old", hosts=HERE, days=(-9, -1)))),
        "soon": await opened(settings(authority.sign("soon", hosts=HERE, days=(2, 9)))),
    }
    at = {name: f"127.0.0.1:{door.port_of('tls')}" for name, door in doors.items()}
    plain = f"127.0.0.1:{doors['here'].port}"
    trusting = Tls(ca=authority.ca)
    try:
        for tls, address, words in (
            (None, at["here"], ["speaks TLS and this side plain text", "evenqs://"]),
            (trusting, plain, ["speaks plain text and this side TLS", "evenq://"]),
            (Tls(insecure=True), plain, ["speaks plain text and this side TLS"]),
            (Tls(ca=foreign.ca), at["here"], [f"is not signed by {foreign.ca}", "EVENQ_TLS_CA", "--tls-ca"]),
            (Tls(), at["here"], ["is not signed by the system's authorities"]),
            (trusting, at["there"], ["is for b.example, 10.0.0.1, not for '127.0.0.1'", "--tls-server-name"]),
            (Tls(ca=authority.ca, server_name="x.y"), at["here"], ["is for localhost, 127.0.0.1, not for 'x.y'"]),
            (trusting, at["old"], ["has expired; renew it"]),
            (trusting, at["soon"], ["is not valid yet; compare the clocks"]),
        ):
            response = await refused(GrpcNet(tls=tls), address)
            assert address in response
            assert all(word in response for word in words), response
    finally:
        for door in doors.values():
            await door.stop()


async def test_a_port_where_nobody_listens_is_no_matter_of_tls(authority: Authority) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    for tls in (None, Tls(ca=authority.ca), Tls(insecure=True)):
        net = GrpcNet(tls=tls)
        with pytest.raises(ConnectionFailed) as error:
            await said(net, address)
        assert "speaks" not in str(error.value)
        await net.close()


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("http://h:1", "unknown scheme"),
        ("evenqs://h", "is not host:port"),
        ("h:0", "port of 1 to 65535"),
        ("", "is not host:port"),
        ("a b:1", "is not host:port"),
    ],
)
async def test_an_address_that_is_none_is_named(address: str, words: str) -> None:
    net = GrpcNet()
    with pytest.raises(Error, match=words):
        await said(net, address)
    await net.close()


async def test_files_that_are_none_are_named(authority: Authority, tmp_path: Path) -> None:
    pair, other = authority.sign("server", hosts=HERE), authority.sign("other")
    broken = tmp_path / "broken.pem"
    broken.write_text("no certificate")
    for wrong, words in (
        ({"certificate": broken}, "broken.pem"),
        ({"key": broken}, "must be PEM"),
        ({"key": other.key}, "belong together"),
        ({"key": tmp_path / "none.pem"}, "cannot be read"),
        ({"client_ca": broken}, "contains no certificates of an authority"),
    ):
        files = {"certificate": pair.certificate, "key": pair.key, **wrong}
        with pytest.raises(SettingsError, match=words):
            await opened(TlsSettings(port=0, **files))
    with pytest.raises(SettingsError, match="nothing would be served"):
        await opened(TlsSettings())
    for tls, words in (
        (Tls(ca=broken), "contains no certificates of an authority"),
        (Tls(certificate=pair.certificate, key=other.key), "belong together"),
        (Tls(ca=tmp_path / "none.pem"), "cannot be read"),
    ):
        with pytest.raises(SettingsError, match=words):
            GrpcNet(tls=tls)
    with pytest.raises(SettingsError, match="key is empty"):
        Tls(certificate=pair.certificate)
    with pytest.raises(SettingsError, match="leave out insecure"):
        Tls(ca=authority.ca, insecure=True)


# ------------------------------------------------------------------------------------------------ files that change


async def test_certificates_change_under_load_and_no_call_fails(authority: Authority) -> None:
    """Each call has a connection of its own, so each shows what is in force at that moment."""
    pair = authority.sign("server", hosts=HERE)
    doors = await opened(settings(pair, reload_ms=100))
    address = f"127.0.0.1:{doors.port}"
    standing = GrpcNet(tls=Tls(ca=authority.ca))
    counts = {"calls": 0}
    over = asyncio.Event()

    async def load(fresh: bool) -> None:
        while not over.is_set():
            net = GrpcNet(tls=Tls(ca=authority.ca)) if fresh else standing
            assert await said(net, address) == "tls True hello"
            counts["calls"] += 1
            if fresh:
                await net.close()

    loads = [asyncio.ensure_future(load(fresh)) for fresh in (True, True, False)]
    shown = set()
    try:
        for change in range(8):
            authority.sign("server", hosts=HERE)
            async with asyncio.timeout(60):
                while len(shown) <= change or counts["calls"] < 15 * change:
                    shown.add(await asyncio.to_thread(certificate_of, doors.port))
    finally:
        over.set()
        await asyncio.gather(*loads)
        await standing.close()
        await doors.stop()
    assert len(shown) >= 8


def certificate_of(port: int) -> str:
    import ssl

    return ssl.get_server_certificate(("127.0.0.1", port))


async def test_a_pair_that_makes_no_sense_is_logged_and_the_one_before_stays(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        pair, other = authority.sign("server", hosts=HERE), authority.sign("other", hosts=HERE)
        doors = await opened(settings(pair, reload_ms=100))
        net = GrpcNet(tls=Tls(ca=authority.ca))
        before = await asyncio.to_thread(certificate_of, doors.port)
        try:
            pair.key.write_bytes(other.key.read_bytes())
            await until_async(lambda: "belong together" in caplog.text)
            assert await asyncio.to_thread(certificate_of, doors.port) == before
            assert await said(net, f"127.0.0.1:{doors.port}") == "tls True hello"
            pair.certificate.write_bytes(other.certificate.read_bytes())
            await until_async(lambda: asyncio.to_thread(lambda: certificate_of(doors.port) != before))
        finally:
            await net.close()
            await doors.stop()
    assert caplog.text.count("changed TLS files rejected") == 1


async def test_links_that_are_moved_as_kubernetes_does_it_are_noticed(authority: Authority, tmp_path: Path) -> None:
    mount = tmp_path / "mount"
    mount.mkdir()

    def place(version: str) -> None:
        pair, folder = authority.sign("server", hosts=HERE), mount / version
        folder.mkdir()
        (folder / "tls.crt").write_bytes(pair.certificate.read_bytes())
        (folder / "tls.key").write_bytes(pair.key.read_bytes())
        (mount / "..new").symlink_to(version)
        (mount / "..new").replace(mount / "..data")

    place("..2026_1")
    for name in ("tls.crt", "tls.key"):
        (mount / name).symlink_to(f"..data/{name}")
    doors = await opened(settings(CertificatePair(mount / "tls.crt", mount / "tls.key"), reload_ms=100))
    before = await asyncio.to_thread(certificate_of, doors.port)
    try:
        place("..2026_2")
        await until_async(lambda: asyncio.to_thread(lambda: certificate_of(doors.port) != before))
    finally:
        await doors.stop()


async def test_a_clients_next_connection_uses_its_new_files(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new authority of the cluster and a new certificate of the client's, under calls, none of which fails."""
    monkeypatch.setattr("evenq.wire.tls_channels.LOOK_MS", 50)
    server, client = authority.sign("server", hosts=HERE), authority.sign("client")
    both = tmp_path / "both.pem"
    both.write_bytes(authority.ca.read_bytes())
    doors = await opened(settings(server, client_ca=both, reload_ms=100))
    net = GrpcNet(tls=Tls(ca=both, certificate=client.certificate, key=client.key))
    address = f"127.0.0.1:{doors.port}"
    try:
        assert await said(net, address)
        successor = Authority(tmp_path / "successor")
        both.write_bytes(authority.ca.read_bytes() + successor.ca.read_bytes())  # first trusted, then used
        other = successor.sign("other")
        await until_let_in(address, Tls(ca=both, certificate=other.certificate, key=other.key))
        for mine, theirs in ((server, successor.sign("server", hosts=HERE)), (client, successor.sign("client"))):
            mine.key.write_bytes(theirs.key.read_bytes())
            mine.certificate.write_bytes(theirs.certificate.read_bytes())
        for _ in range(20):
            assert await said(net, address)
            await asyncio.sleep(0.03)
        await until_let_in(address, Tls(ca=successor.ca, certificate=other.certificate, key=other.key))
        assert await said(net, address)
        both.write_bytes(successor.ca.read_bytes())  # the old authority is out: only new files get in
        for _ in range(10):
            assert await said(net, address)
            await asyncio.sleep(0.03)
        assert await said(GrpcNet(tls=Tls(ca=both, certificate=client.certificate, key=client.key)), address)
    finally:
        await net.close()
        await doors.stop()


async def test_a_pinned_server_with_a_new_certificate_is_pinned_again(authority: Authority) -> None:
    doors = await opened(settings(authority.sign("server", hosts=HERE)))
    net, port = GrpcNet(tls=Tls(insecure=True)), doors.port
    try:
        assert await said(net, f"127.0.0.1:{port}")
        await doors.stop()
        tls = TlsSettings(**{**settings(authority.sign("server", hosts=HERE)).model_dump(), "port": port})
        doors = await opened(tls)
        failed = 0
        while failed < 50:
            try:
                assert await said(net, f"127.0.0.1:{port}")
            except ConnectionFailed:
                failed += 1
                await asyncio.sleep(0.05)
            else:
                break
        assert failed < 50
    finally:
        await net.close()
        await doors.stop()
