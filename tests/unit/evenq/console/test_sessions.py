"""Sessions: their number, their end, and the clients that they share."""

from __future__ import annotations

import asyncio

import pytest

from evenq.console.sessions import (
    AGE_MS_MAX,
    FAILED_MS,
    IDLE_MS,
    OF_USER_MAX,
    SESSIONS_MAX,
    WAITING_OF_USER_MAX,
    Principal,
    UserSession,
    UserSessions,
)
from evenq.console.settings import ConsoleSettings
from evenq.errors import ConnectionFailed, RequestTimeout, TooManyRequests, Unauthorized
from evenq.wire.credentials import Credentials
from tests.unit.evenq.console.conftest import ConsoleStage


def many_users(count: int) -> str:
    """Returns a users file with users `u0`, `u1` ..."""
    users = "".join(f'[users.u{number}]\nsecret = "secret-of-u{number}"\n' for number in range(count))
    return '[users.servers]\nsecret = "secret-of-servers"\ninternal = true\n' + users


class Door:
    """Sessions of a console in front of a broker."""

    def __init__(self, stage: ConsoleStage) -> None:
        self.clock = stage.clock
        self.net = stage.net
        self.sessions = UserSessions(ConsoleSettings(endpoint="a:8081"), stage.clock, stage.net)

    async def sign_in(self, user: str = "root", secret: str = "") -> UserSession:
        return await self.clock.during(self.sessions.sign_in(keys(user, secret)))

    async def find(self, session: UserSession) -> UserSession | None:
        return await self.clock.during(self.sessions.find(session.id))

    async def end(self, session: UserSession) -> None:
        await self.clock.during(self.sessions.end(session.id))

    async def close(self) -> None:
        await self.clock.during(self.sessions.close())


def keys(user: str, secret: str = "") -> Credentials:
    return Credentials(access_key=user, secret_key=secret or f"secret-of-{user}")


async def works(door: Door, principal: Principal) -> bool:
    """Returns whether its client is still open."""
    try:
        await door.clock.during(principal.figures.newest())
    except Unauthorized:
        return False
    return True


async def test_a_session_acts_with_the_keys_of_its_user(guarded: ConsoleStage) -> None:
    door = Door(guarded)
    session = await door.sign_in("reader")
    assert session.principal.user == "reader"
    assert await door.find(session) is session
    await door.close()


async def test_a_form_that_was_begun_before_the_sign_out_gets_no_producer_after_it(guarded: ConsoleStage) -> None:
    """Nothing would close it, and it would send with the keys of a user who has left."""
    door = Door(guarded)
    session = await door.sign_in("reader")
    ending = asyncio.ensure_future(door.sessions.end(session.id))
    await asyncio.sleep(0)
    for _ in range(2):  # while the clients are closed, and later
        with pytest.raises(Unauthorized, match="its user has signed out"):
            _ = session.principal.producer
        await guarded.clock.during(ending)
    await door.close()


async def test_a_session_ends_although_a_message_of_its_producer_is_not_sent(
    guarded: ConsoleStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the request that finds the session too old, of any user, would fail, and the clients stay open."""
    door, closed = Door(guarded), asyncio.Event()
    session = await door.sign_in("reader")

    async def stuck() -> None:
        raise RequestTimeout("1 message was not sent")

    async def close() -> None:
        closed.set()

    monkeypatch.setattr(session.principal.producer, "close", stuck)
    monkeypatch.setattr(session.principal.admin, "close", close)
    await door.end(session)
    assert closed.is_set()
    await door.close()


async def test_wrong_keys_open_no_session_and_take_time(guarded: ConsoleStage) -> None:
    door = Door(guarded)
    for user, secret in (("root", "wrong-secret"), ("unknown", "any-secret")):
        begin_ms = guarded.clock.monotonic_ms()
        with pytest.raises(Unauthorized):
            await door.sign_in(user, secret)
        assert guarded.clock.monotonic_ms() - begin_ms >= FAILED_MS
    await door.close()


async def test_a_user_without_grants_may_sign_in(guarded: ConsoleStage) -> None:
    door = Door(guarded)
    session = await door.sign_in("nobody")
    assert session.principal.user == "nobody"
    await door.close()


async def test_keys_are_not_accepted_while_the_cluster_does_not_answer(stage: ConsoleStage) -> None:
    door = Door(stage)
    with pytest.raises(ConnectionFailed):
        await door.sign_in()
    await door.close()


async def test_sessions_of_one_user_share_a_client_and_the_last_closes_it(guarded: ConsoleStage) -> None:
    door = Door(guarded)
    first, second = await door.sign_in(), await door.sign_in()
    assert first.id != second.id
    assert first.principal is second.principal
    await door.end(first)
    assert await works(door, second.principal)
    await door.end(second)
    assert not await works(door, second.principal)
    assert (await door.sign_in()).principal is not second.principal
    await door.close()


async def test_the_right_secret_of_a_signed_in_user_is_still_needed(guarded: ConsoleStage) -> None:
    door = Door(guarded)
    await door.sign_in()
    with pytest.raises(Unauthorized):
        await door.sign_in("root", "wrong-secret")
    await door.close()


async def test_a_session_ends_when_it_is_not_used(guarded: ConsoleStage) -> None:
    door = Door(guarded)
    used, unused = await door.sign_in("root"), await door.sign_in("reader")
    guarded.clock.spend(IDLE_MS - 1_000)
    assert await door.find(used)
    guarded.clock.spend(2_000)
    assert await door.find(unused) is None
    assert not await works(door, unused.principal)
    assert await door.find(used) is used
    await door.close()


async def test_a_session_ends_at_its_age_also_when_it_is_used(guarded: ConsoleStage) -> None:
    door = Door(guarded)
    session = await door.sign_in()
    for _ in range(AGE_MS_MAX // (IDLE_MS // 2)):
        assert await door.find(session)
        guarded.clock.spend(IDLE_MS // 2)
    guarded.clock.spend(1_000)
    assert await door.find(session) is None
    await door.close()


async def test_the_least_used_session_of_a_user_makes_room_for_a_new_one(guarded: ConsoleStage) -> None:
    door = Door(guarded)
    sessions = [await door.sign_in() for _ in range(OF_USER_MAX)]
    guarded.clock.spend(1_000)
    assert await door.find(sessions[0])
    newest = await door.sign_in()
    assert await door.find(sessions[1]) is None
    assert await door.find(sessions[0])
    assert await door.find(newest)
    await door.close()


async def test_sign_ins_of_one_user_at_the_same_time_open_no_more_sessions_than_allowed(guarded: ConsoleStage) -> None:
    door = Door(guarded)
    opened = []
    for count in (WAITING_OF_USER_MAX, OF_USER_MAX + 10):
        sign_ins = [door.sessions.sign_in(keys("root")) for _ in range(count)]
        opened += await guarded.clock.during(asyncio.gather(*sign_ins))
    alive = [session for session in opened if await door.find(session)]
    assert len(alive) == OF_USER_MAX
    assert len({id(one.principal) for one in alive}) == 1
    assert await works(door, alive[0].principal)
    await door.close()


async def test_the_sessions_of_all_users_are_bounded(stage: ConsoleStage) -> None:
    """The limit is reached by sign-ins at the same time: all of them found a free place when they began."""
    await stage.broker(users=many_users(SESSIONS_MAX + 8))
    door = Door(stage)
    first = [await door.sign_in(f"u{number}") for number in range(SESSIONS_MAX - 1)]
    late = asyncio.gather(
        *(door.sessions.sign_in(keys(f"u{SESSIONS_MAX + number}")) for number in range(4)), return_exceptions=True
    )
    results = await stage.clock.during(late)
    assert sorted(type(one).__name__ for one in results) == ["TooManyRequests"] * 3 + ["UserSession"]
    with pytest.raises(TooManyRequests, match="200 sessions"):
        await door.sign_in(f"u{SESSIONS_MAX + 7}")
    assert await door.sign_in("u0"), "a user who is signed in replaces a session"
    assert await door.find(first[0]) is None
    await door.end(first[1])
    assert await door.sign_in(f"u{SESSIONS_MAX + 7}")
    await door.close()


async def test_guesses_of_strangers_do_not_keep_a_user_out(guarded: ConsoleStage) -> None:
    """Hundreds of wrong keys at a time wait for their refusal; a sign-in with right keys does not wait for them."""
    door = Door(guarded)
    guesses = [
        asyncio.ensure_future(door.sessions.sign_in(keys(f"guess{number}", "wrong-secret"))) for number in range(400)
    ]
    await guarded.clock.advance(0)
    begin_ms = guarded.clock.monotonic_ms()
    await guarded.clock.during(_until_signed_in(door))
    assert guarded.clock.monotonic_ms() - begin_ms < 2 * FAILED_MS
    results = await guarded.clock.during(asyncio.gather(*guesses, return_exceptions=True))
    assert {type(one) for one in results} <= {Unauthorized, TooManyRequests}
    await door.close()


async def _until_signed_in(door: Door) -> None:
    while True:
        try:
            await door.sessions.sign_in(keys("root"))
        except TooManyRequests:
            await door.clock.sleep_ms(50)
        else:
            return


async def test_guesses_at_one_user_are_one_at_a_time(guarded: ConsoleStage) -> None:
    door = Door(guarded)
    guesses = [
        door.sessions.sign_in(keys("root", f"wrong-secret-{number}")) for number in range(WAITING_OF_USER_MAX + 20)
    ]
    begin_ms = guarded.clock.monotonic_ms()
    results = await guarded.clock.during(asyncio.gather(*guesses, return_exceptions=True))
    checked = sum(isinstance(one, Unauthorized) for one in results)
    refused = sum(isinstance(one, TooManyRequests) for one in results)
    assert checked + refused == len(results)
    assert refused == 20
    assert guarded.clock.monotonic_ms() - begin_ms >= checked * FAILED_MS
    await door.close()


async def test_sessions_that_end_at_the_same_time_close_each_client_once(guarded: ConsoleStage) -> None:
    door = Door(guarded)
    users = [await door.sign_in(user) for user in ("root", "reader", "nobody")]
    await guarded.clock.during(asyncio.gather(*(door.sessions.end(one.id) for one in users * 2)))
    assert [await works(door, one.principal) for one in users] == [False] * 3
    await door.close()


async def test_the_token_of_one_session_does_not_fit_another(guarded: ConsoleStage) -> None:
    door = Door(guarded)
    token = door.sessions.token("one")
    assert door.sessions.token_fits("one", token)
    for session_id, wrong in (("two", token), ("one", ""), ("one", "ключ"), ("one", token + "0"), ("one", "\ud800")):
        assert not door.sessions.token_fits(session_id, wrong)
    assert not UserSessions(ConsoleSettings(), guarded.clock).token_fits("one", token), "each console has a secret"


async def test_an_unknown_session_is_none(guarded: ConsoleStage) -> None:
    door = Door(guarded)
    for session_id in ("", "x", "\x00", "ж" * 10_000):
        assert await door.clock.during(door.sessions.find(session_id)) is None


async def test_closing_ends_every_session(guarded: ConsoleStage) -> None:
    door = Door(guarded)
    session = await door.sign_in()
    without_keys = door.sessions.without_keys()
    await door.close()
    assert not await works(door, session.principal)
    assert not await works(door, without_keys)
