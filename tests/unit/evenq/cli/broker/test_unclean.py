"""`evenq broker elect-unclean`: the plan first, the election only with consent."""

from __future__ import annotations

import json
from typing import Any

from evenq.wire.stubs.evenq.v1 import admin_pb2

Copy = admin_pb2.BrokerCopy
STORE = "a" * 32


def answer(*, refusal: str = "", done: bool = False, least: int = 2) -> admin_pb2.ElectUncleanResponse:
    response = admin_pb2.ElectUncleanResponse(suggested=2, refusal=refusal)
    response.lost.add(copy=0, store_id=STORE, away_since_ms=1_700_000_000_000)
    response.lost.add(copy=1, store_id="b" * 32)
    group = response.group
    group.broker_name, group.mode, group.epoch, group.leader, group.in_sync_min = "broker-a", "sync", 3, -1, least
    for number, state in ((0, Copy.AWAY), (1, Copy.CATCHING_UP), (2, Copy.CATCHING_UP)):
        group.copies.add(
            copy=number, address=f"db{number}:8083", state=state, may_lead=number == 0, log_end=1_000 * number,
            lag_bytes=-1, lag_ms=-1, committed_end=900 * number, log_epoch=number,
        )  # fmt: skip
    if done:
        response.election.CopyFrom(
            admin_pb2.UncleanElection(epoch=4, copy=2, store_id=STORE, time_ms=5, log_end=2_000, reason="fire")
        )
    return response


def one_line(out: str) -> str:
    return " ".join(out.split())


def asked_of(asked: Any) -> list[admin_pb2.ElectUncleanRequest]:
    return [admin_pb2.ElectUncleanRequest.FromString(data) for name, data in asked if name == "ElectUnclean"]


def test_without_consent_it_says_what_would_be_lost_and_does_nothing(run: Any) -> None:
    code, out, _, calls = run("broker elect-unclean broker-a --copy 2", ElectUnclean=answer())
    assert code == 0
    text = one_line(out)
    assert "If copy 2 becomes leader of broker group broker-a, all records committed after byte 2,000" in text
    assert "Nothing was changed. If the copies below are gone for good: add --copy 2 --accept-data-loss." in text
    assert "Records that only these copies have are lost" in text
    assert f"0 {STORE} 2023-11-14" in text
    assert "2 2,000 2 1,800 yes" in text
    (request,) = asked_of(calls)
    assert (request.broker_name, request.copy, request.accept_data_loss) == ("broker-a", 2, False)


def test_without_a_copy_it_suggests_the_one_that_has_most(run: Any) -> None:
    _, out, _, calls = run("broker elect-unclean broker-a", ElectUnclean=answer())
    assert "If copy 2 becomes leader" in one_line(out)
    assert not asked_of(calls)[0].HasField("copy")
    code, _, err, calls = run("broker elect-unclean broker-a --accept-data-loss", ElectUnclean=answer())
    assert (code, "name the copy" in one_line(err), len(asked_of(calls))) == (4, True, 1)


def test_with_consent_it_is_done_with_the_epoch_of_the_plan_and_says_what_comes_next(run: Any) -> None:
    code, out, _, calls = run(
        "broker elect-unclean broker-a --copy 2 --accept-data-loss --reason fire",
        ElectUnclean=[answer(), answer(done=True)],
    )
    assert code == 0
    text = one_line(out)
    assert text.index("Records that only these copies have") < text.index(
        "Copy 2 leads broker group broker-a from epoch 4 on"
    )
    assert "It accepts no messages until 2 copies are in sync" in text
    assert "`evenq broker set-min-in-sync broker-a 1 --endpoint" in text
    plan, act = asked_of(calls)
    assert (plan.accept_data_loss, act.accept_data_loss, act.epoch, act.reason) == (False, True, 3, "fire")


def test_a_refusal_comes_after_the_plan_and_nothing_is_asked_for(run: Any) -> None:
    code, out, err, calls = run(
        "broker elect-unclean broker-a --copy 1 --accept-data-loss", ElectUnclean=answer(refusal="copy 2 has more")
    )
    assert code == 4
    assert "No unclean election in broker group broker-a: copy 2 has more." in one_line(out)
    assert "copy 2 has more. Nothing was changed" in one_line(err)
    assert [one.accept_data_loss for one in asked_of(calls)] == [False]


def test_a_group_that_is_well_is_not_said_to_lose_anything(run: Any) -> None:
    well = answer(refusal="it has a leader")
    for copy, lost in zip(well.group.copies, [*well.lost, None], strict=True):
        copy.state, copy.may_lead = Copy.IN_SYNC, True
        if lost is not None:
            lost.away_since_ms = 0
    _, out, _, _ = run("broker elect-unclean broker-a", ElectUnclean=well)
    text = one_line(out)
    assert "lost for good" not in text
    assert f"0 {STORE} - no" in text
    assert f"1 {'b' * 32} - yes" in one_line(run("broker elect-unclean broker-a", ElectUnclean=answer())[1])


def test_json_is_one_document(run: Any) -> None:
    _, out, _, _ = run(
        "broker elect-unclean broker-a --copy 2 --accept-data-loss --json",
        ElectUnclean=[answer(), answer(done=True, least=1)],
    )
    told = json.loads(out)
    assert (told["done"], told["epoch"], told["leader"], told["lost_copies"]) == (True, 4, 2, ["0", "1"])
    _, out, _, _ = run("broker elect-unclean broker-a --json", ElectUnclean=answer(refusal="why not"))
    told = json.loads(out)
    assert (told["done"], told["refusal"], told["suggested"], told["leader"]) == (False, "why not", 2, None)
    assert told["lost"][0] == {"copy": 0, "store_id": STORE, "away_since_ms": 1_700_000_000_000, "answers": False}
