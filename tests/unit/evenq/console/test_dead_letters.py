"""Pages of dead letters, and their replay, against a broker in this process."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import replace
from typing import Any

import pytest

from evenq import aio
from evenq.console import sessions
from evenq.console.replays import ReplayPlan
from evenq.console.settings import ConsoleSettings
from evenq.errors import ConnectionFailed
from evenq.model import MessageQueue
from evenq.runtime.clock import SystemClock
from evenq.wire.stubs.apache.rocketmq.v2 import service_pb2
from tests.unit.evenq.console.console_site import Site, token

FORWARD = "/apache.rocketmq.v2.MessagingService/ForwardMessageToDeadLetterQueue"
PLAN = {"reason": "", "to_topic": "", "rate": "", "limit": ""}
HOUR_MS = 3_600_000


async def died(site: Site, *bodies: bytes, **fields: Any) -> None:
    """Sends messages to the topic `t`, and lets the group `g` forward them to its dead letters."""
    async with aio.SimpleConsumer(
        group="g", subscriptions={"t": "*"}, endpoint="a:8081", context=site.context, start_from="FIRST"
    ) as consumer:
        for body in bodies:
            await site.send(body, **fields)
        left = len(bodies)
        while left:
            for message in await consumer.receive(32, invisible_ms=30_000):
                request = service_pb2.ForwardMessageToDeadLetterQueueRequest(
                    receipt_handle=message.receipt_handle, message_id=message.message_id
                )
                request.group.name, request.topic.name = "g", "t"
                headers = {"x-mq-client-id": consumer.client_id, "x-mq-language": "JAVA"}
                assert site.context.net is not None
                answer = await site.context.net.unary(
                    "a:8081", FORWARD, request.SerializeToString(), timeout_ms=10_000, metadata=headers
                )
                status = service_pb2.ForwardMessageToDeadLetterQueueResponse.FromString(answer).status
                assert status.code == 20_000, status
                left -= 1


def changed(monkeypatch: pytest.MonkeyPatch, *, silent: tuple[str, ...] = (), **fields: Any) -> None:
    """Changes fields of the dead letters that the cluster returns."""
    real = aio.Admin.list_dead_letters

    async def hostile(*given: Any, **options: Any) -> Any:
        view = await real(*given, **options)
        return replace(view, letters=tuple(replace(one, **fields) for one in view.letters), silent=silent)

    monkeypatch.setattr(aio.Admin, "list_dead_letters", hostile)


async def refreshed(site: Site, path: str) -> str:
    """Returns the part of a page that a browser refreshes."""
    page = await site.browser.get(path, headers={"hx-request": "true"})
    assert page.status_code == 200, page.text
    assert page.text.startswith('<div id="live"')
    return page.text


async def ended(site: Site) -> str:
    """Returns the page of the replay when it has ended."""
    clock = SystemClock()
    for _ in range(500):
        page = await site.get("/dead-letters/g/replay")
        if "Runs since" not in page:
            return page
        await clock.sleep_ms(20)
    raise AssertionError("the replay did not end")


# ---------------------------------------------------------------------------------------------------- lists


async def test_groups_with_dead_letters_are_counted_by_broker(site: Site) -> None:
    assert "No dead letters." in await site.get("/dead-letters")
    await died(site, b"1", b"2")
    page = await site.get("/dead-letters")
    assert re.search(r'>g</a></th><td>a</td><td class="n">2</td><td class="n">2</td>', page)
    assert await refreshed(site, "/dead-letters") in page


async def test_dead_letters_of_a_group_show_reason_origin_and_age(site: Site) -> None:
    await died(site, b"poison", tag="bad", keys=("k",))
    page = await site.get("/dead-letters/g")
    for text in (">forwarded<", ">bad<", ">k<", "Edit and send"):
        assert text in page
    origin = re.search(r'<a href="(/messages/t/a/\d+/0)">', page)
    letter = re.search(r'<a href="(/messages/%25DLQ%25g/a/0/0)">', page)
    assert origin is not None
    assert letter is not None
    assert "poison" in await site.get(origin[1])
    assert "Copy of" in await site.get(letter[1])
    assert re.search(r'under an hour</th>.*?<tbody><tr><td class="n">1</td>', page, re.DOTALL)


async def test_a_group_that_does_not_exist_is_a_page_with_404(site: Site) -> None:
    for path in ("nothing", "nothing/letters.csv", "nothing/replay"):
        assert "Topics" in await site.get(f"/dead-letters/{path}", 404)


async def test_dead_letters_are_chosen_by_reason_and_by_age(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    await died(site, b"1", b"2")
    assert "No dead letter matches" in await site.get("/dead-letters/g?reason=attempts")
    assert ", 2 rows" in await site.get("/dead-letters/g?reason=forwarded&waiting=yes")
    for age_ms, column in ((HOUR_MS, 1), (30 * HOUR_MS, 2), (200 * HOUR_MS, 3)):
        with monkeypatch.context() as patch:
            changed(patch, stored_ms=SystemClock().now_ms() - age_ms)
            cells = re.search(r"<tbody><tr>(.*?)</tr>", await site.get("/dead-letters/g"))
            assert cells is not None
            assert re.findall(r'<td class="n">(\d)</td>', cells[1])[column] == "2"


async def test_unknown_values_are_unknown_and_silent_brokers_are_named(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    await died(site, b"1")
    changed(
        monkeypatch,
        silent=("b-away",),
        attempts=0,
        reason="",
        stored_ms=0,
        origin_offset=-1,
        origin=MessageQueue("t", "", -1),
    )
    page = await site.get("/dead-letters/g")
    assert "No answer from b-away" in page
    assert page.count(">unknown<") >= 3
    assert "t, place unknown" in page
    assert "-1" not in page
    assert ", 1 row<" in (await site.get("/dead-letters/g?reason=unknown"))
    [row] = list(csv.DictReader(io.StringIO(await site.get("/dead-letters/g/letters.csv"))))
    assert [row[name] for name in ("dead_since_ms", "queue", "offset", "attempts", "reason")] == [""] * 5


async def test_nothing_of_a_dead_letter_becomes_markup(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = '<script>x</script>"\u202egnp\x1b[31m'
    await died(site, b"1")
    changed(monkeypatch, reason=bad, tag=bad, keys=(bad,), message_id=bad, origin=MessageQueue(bad, bad, 1))
    page = await site.get("/dead-letters/g")
    assert "<script>x" not in page
    assert "\x1b" not in re.sub('value="[^"]*"', "", page)
    assert "\u202e" not in re.sub('value="[^"]*"', "", page)


@pytest.mark.parametrize("sign", ["=", "+", "-", "@", "\t", "\r"])
async def test_a_cell_of_the_file_is_never_a_formula(site: Site, monkeypatch: pytest.MonkeyPatch, sign: str) -> None:
    await died(site, b"1")
    changed(monkeypatch, tag=f"{sign}cmd", keys=(f"{sign}1", "a,b\n"))
    file = await site.browser.get("/dead-letters/g/letters.csv")
    assert file.headers["content-disposition"] == 'attachment; filename="dead-letters-g.csv"'
    assert file.headers["content-type"].startswith("text/csv")
    [row] = list(csv.DictReader(io.StringIO(file.text, newline="")))
    assert (row["tag"], row["keys"]) == (f"'{sign}cmd", f"'{sign}1 a,b\n")


# ---------------------------------------------------------------------------------------------------- replay


async def test_a_replay_is_planned_confirmed_and_reported(site: Site) -> None:
    await died(site, b"1", b"2", b"3")
    page = (await site.post("/dead-letters/g/plan", PLAN, status=200)).text
    assert "3 dead letters would be sent again" in page
    assert "ends when the console is stopped" in page
    assert len((await site.admin.find_messages("t")).messages) == 3
    form = {name: "" for name in re.findall(r'type="hidden" name="(\w+)"', page) if name != "token"}
    assert form == PLAN
    answer = await site.post("/dead-letters/g/replay", form)
    assert answer.headers["location"] == "/dead-letters/g/replay"
    page = await ended(site)
    assert "Done at" in page
    assert "3 sent" in page
    assert len((await site.admin.find_messages("t")).messages) == 6
    assert "Replay that ended" in await site.get("/dead-letters/g")
    assert "No dead letter matches" in await site.get("/dead-letters/g?waiting=yes")


async def test_a_replay_has_a_limit_a_target_and_a_reason(site: Site) -> None:
    await site.admin.create_topic("other", queues=1)
    await died(site, b"1", b"2", b"3")
    plan = PLAN | {"limit": "2", "to_topic": "other", "reason": "forwarded"}
    page = (await site.post("/dead-letters/g/plan", plan, status=200)).text
    assert "2 dead letters would be sent again" in page
    assert ">other</th>" in page
    await site.post("/dead-letters/g/replay", plan)
    assert "2 sent" in await ended(site)
    assert len((await site.admin.find_messages("other")).messages) == 2
    page = (await site.post("/dead-letters/g/plan", PLAN | {"reason": "attempts"}, status=200)).text
    assert "0 dead letters would be sent again. 1 have another reason" in page


async def test_a_slow_replay_shows_its_progress_runs_once_and_is_stopped(site: Site) -> None:
    await died(site, *(b"%d" % number for number in range(20)))
    slow = PLAN | {"rate": "2"}
    await site.post("/dead-letters/g/replay", slow)
    await site.post("/dead-letters/g/replay", PLAN)  # one that runs is shown; no other one starts
    page = await site.get("/dead-letters/g/replay")
    assert "Runs since" in page
    assert 'hx-trigger="every 1s"' in page
    assert "Runs since" in await refreshed(site, "/dead-letters/g/replay")
    assert "2 per second" in page
    assert "Replay that runs" in await site.get("/dead-letters/g")
    await site.post("/dead-letters/g/stop", {})
    page = await site.get("/dead-letters/g/replay")
    assert "before all was sent" in page
    assert "it was stopped" in page
    assert 'hx-trigger="every 1s"' not in page
    await site.post("/dead-letters/g/replay", PLAN)
    assert "Done at" in await ended(site)
    assert len((await site.admin.find_messages("t", limit=100)).messages) == 40


async def test_a_replay_ends_with_its_session(site: Site) -> None:
    await died(site, *(b"%d" % number for number in range(20)))
    clock = SystemClock()
    principal = sessions.Principal(ConsoleSettings(endpoint="a:8081"), None, clock)
    replay = principal.replays.start(ReplayPlan(group="g", per_second=1.0))
    assert principal.replays.start(ReplayPlan(group="g")) is replay
    await principal.close()
    assert replay.end_ms is not None
    assert replay.problem == "it was stopped"
    assert len((await site.admin.find_messages("t", limit=100)).messages) < 40


async def test_a_replay_that_fails_says_why(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    await died(site, b"1")

    async def broken(*_: Any, **__: Any) -> Any:
        raise ConnectionFailed("b-away does not answer")

    monkeypatch.setattr(aio.Admin, "replay_dead_letters", broken)
    await site.post("/dead-letters/g/replay", PLAN)
    assert "b-away does not answer" in await ended(site)
    assert (await site.browser.get("/dead-letters/g")).status_code == 200
    await site.post("/dead-letters/g/plan", PLAN, status=503)


@pytest.mark.parametrize(
    "fault", [{"rate": "x"}, {"rate": "nan"}, {"rate": "0"}, {"limit": "-1"}, {"reason": "' OR 1"}]
)
async def test_a_plan_that_is_not_valid_is_refused(site: Site, fault: dict[str, str]) -> None:
    await died(site, b"1")
    await site.post("/dead-letters/g/plan", PLAN | fault, status=400)


async def test_a_read_only_console_and_a_wrong_token_replay_nothing(site: Site) -> None:
    await died(site, b"1")
    reader = await site.visitor(allow_changes=False)
    own = await token(reader)
    for action in ("plan", "replay", "stop"):
        path = f"/dead-letters/g/{action}"
        assert (await site.browser.post(path, data={"token": "wrong", **PLAN})).status_code == 403
        assert (await reader.post(path, data={"token": own, **PLAN})).status_code == 403
    page = (await reader.get("/dead-letters/g")).text
    assert "Plan" not in page
    assert "Edit and send" not in page
    assert len((await site.admin.find_messages("t")).messages) == 1


async def test_the_form_of_a_dead_letter_has_its_original_content(site: Site) -> None:
    await died(site, b"poison", tag="bad", properties={"region": "eu"})
    page = await site.get("/messages/%25DLQ%25g/a/0/0/resend")
    assert re.search(r'name="topic" value="t"', page)
    assert ">\npoison</textarea>" in page
    assert "{&#34;region&#34;: &#34;eu&#34;}" in page
    assert "DLQ_" not in page
