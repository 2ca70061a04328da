"""Authentication of a server as its settings say: off by default, on with a file that is read again."""

import asyncio
import logging
from pathlib import Path

import pytest
from evenq_proofs.loop_net import LoopNet
from evenq_proofs.rpcs import fake_rpc
from pydantic import ValidationError

from evenq.errors import SettingsError
from evenq.runtime.clock import FakeClock
from evenq.serving.auth.server_auth import CLOCK_SKEW_MS, Auth, AuthSettings
from evenq.serving.auth.users import UserResource
from evenq.serving.rpc import Access, Action, Resource, Rpc, RpcContext
from evenq.wire.signature import Secret
from evenq.wire.signed_net import SignedNet, Signer
from evenq.wire.stubs.apache.rocketmq.v2 import service_pb2

FILE = '[users.evenq-internal]\nsecret = "{secret}"\ninternal = true\n'
CALL = "/apache.rocketmq.v2.MessagingService/EndTransaction"


async def answer(request: bytes, context: RpcContext) -> bytes:
    return b""


def rpc() -> Rpc:
    access = Access(Resource.CLUSTER, Action.INTERNAL)
    return fake_rpc(CALL, answer, service_pb2.EndTransactionResponse, access=access)


async def test_switched_off_it_hands_back_what_it_is_given() -> None:
    clock = FakeClock()
    auth, net, rpcs = Auth(AuthSettings(), clock=clock), LoopNet(clock), [rpc()]
    assert auth.net(net) is net
    assert auth.rpcs(rpcs)[0] is rpcs[0]
    auth.start()
    await auth.close()


async def test_tenants_are_those_of_the_file_that_is_in_force(tmp_path: Path) -> None:
    clock, file = FakeClock(), tmp_path / "users.toml"
    grant = '[users.u]\nsecret = "12345678"\nallow = [{{ resource = "topic:{}", actions = ["publish"] }}]\n'
    file.write_text(FILE.format(secret="first-secret") + grant.format("a-*"))
    auth = Auth(AuthSettings(enabled=True, users=file), clock=clock)
    before = auth.users()
    assert before is not None
    assert [one.name for one in before.tenants_of(UserResource.TOPIC, "a-1")] == ["u"]
    file.write_text(FILE.format(secret="first-secret") + grant.format("b-*"))
    assert await auth.reload()
    after = auth.users()
    assert after is not None
    assert not after.tenants_of(UserResource.TOPIC, "a-1")
    assert after.tenants_of(UserResource.TOPIC, "b-1")
    assert Auth(AuthSettings(), clock=clock).users() is None


def test_settings_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match=r"without auth\.users"):
        AuthSettings(enabled=True)
    with pytest.raises(SettingsError, match="cannot be read"):
        Auth(AuthSettings(enabled=True, users=tmp_path / "none.toml"), clock=FakeClock())
    big = tmp_path / "big.toml"
    big.write_bytes(b"#" * (4 << 20) + b"#")
    with pytest.raises(SettingsError, match="the limit is 4194304"):
        Auth(AuthSettings(enabled=True, users=big), clock=FakeClock())


@pytest.mark.parametrize(
    ("given", "plain", "late_ms", "taken"),
    [
        ({}, True, CLOCK_SKEW_MS, True),
        ({}, True, CLOCK_SKEW_MS + 1_000, False),
        ({}, False, CLOCK_SKEW_MS + 1_000, True),
        ({"clock_skew_ms": 0}, True, CLOCK_SKEW_MS + 1_000, True),
        ({"clock_skew_ms": 5_000}, False, 6_000, False),
    ],
)
async def test_a_signature_that_was_listened_to_is_of_use_for_a_minute_unless_nobody_can_listen(
    tmp_path: Path, given: dict[str, int], plain: bool, late_ms: int, taken: bool
) -> None:
    clock, file = FakeClock(), tmp_path / "users.toml"
    file.write_text(FILE.format(secret="first-secret"))
    settings = AuthSettings.model_validate({"enabled": True, "users": file, **given})
    below = LoopNet(clock)
    below.serve("server:1", Auth(settings, clock=clock, plain=plain).rpcs([rpc()]))
    caught = Signer("evenq-internal", Secret("first-secret"), clock=clock).headers()
    clock.jump_wall(late_ms)
    raw = await below.unary("server:1", CALL, b"", timeout_ms=1_000, metadata=caught)
    code = service_pb2.EndTransactionResponse.FromString(raw).status.code
    assert code == (0 if taken else 40100)


async def test_servers_sign_their_calls_and_a_changed_file_is_in_force_within_its_interval(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with asyncio.timeout(60):
        caplog.set_level(logging.INFO)
        clock, file = FakeClock(), tmp_path / "users.toml"
        file.write_text(FILE.format(secret="first-secret"))
        settings = AuthSettings(enabled=True, users=file, reload_ms=1_000)
        server, client = Auth(settings, clock=clock), Auth(settings, clock=clock)
        below = LoopNet(clock)
        below.serve("server:1", server.rpcs([rpc()]))
        net = client.net(below)
        assert isinstance(net, SignedNet)

        async def code() -> int:
            raw = await net.unary("server:1", CALL, b"", timeout_ms=1_000)
            return service_pb2.EndTransactionResponse.FromString(raw).status.code

        assert await code() == 0
        unsigned = service_pb2.EndTransactionResponse.FromString(
            await below.unary("server:1", CALL, b"", timeout_ms=1_000)
        )
        assert unsigned.status.code == 40100
        file.write_text(FILE.format(secret="other-secret"))
        assert await server.reload()
        assert not await server.reload()
        assert await code() == 40100
        assert await client.reload()
        assert await code() == 0
        file.write_text("nonsense")
        assert not await server.reload()
        assert await code() == 0
        assert "users file rejected" in caplog.text
        assert "secret" not in " ".join(str(record.__dict__) for record in caplog.records)

        client.start()
        file.write_text(FILE.format(secret="third-secret"))
        assert await server.reload()
        while await code() != 0:  # the watch of the client reads the file in a thread
            await clock.advance(1_000)
        await client.close()
        await client.close()
