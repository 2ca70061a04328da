"""The group record in a Lease, against an API server of our own that fails as the test sets."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from typing import Any

import pytest
from evenq_broker.core.replication.record import Pair, first_record
from evenq_broker.loops.coordinators.coordinator import CoordinatorUnknown, RecordWentBack
from evenq_broker.loops.coordinators.lease import ANNOTATION
from evenq_broker.loops.coordinators.remote import RemoteTiming
from evenq_proofs.lease_api import LeaseApi
from evenq_proofs.waiting import until

from evenq.serving.kubernetes.api import KubernetesApi

FIRST = first_record(Pair(0, "0" * 32), members=(0, 1, 2), min_isr=2)
LEASES = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
SHORT = RemoteTiming(total_ms=3_000, silence_ms=1_000, retry_ms_max=200)


def path_of(coordinators: Any) -> str:
    return f"{LEASES}/{coordinators.key.rpartition('/')[2]}"


async def test_the_lease_shows_people_who_leads_and_keeps_what_others_wrote(
    lease_api: LeaseApi, coordinators: Any
) -> None:
    """A chart makes the Lease, so that brokers need no right to create one, and knows it by its labels."""
    path = path_of(coordinators)
    others: dict[str, Any] = {
        "labels": {"app.kubernetes.io/managed-by": "Helm"},
        "annotations": {"meta.helm.sh/release-name": "evenq"},
    }
    lease_api.put(path, {"metadata": {"name": path.rpartition("/")[2], **others}}, "ADDED")
    lease_api.status_of["POST"] = 403
    a, b = coordinators.on_lease(KubernetesApi()), coordinators.on_lease(KubernetesApi())
    assert await a.read() is None
    seen = await a.compare_and_set(None, FIRST)
    assert "holderIdentity" not in lease_api.leases[path]["spec"]
    assert await b.compare_and_set(None, FIRST) is None
    seen = await a.compare_and_set(seen, FIRST.elected(0))
    lease = lease_api.leases[path]
    assert (lease["spec"]["holderIdentity"], lease["spec"]["leaseTransitions"]) == ("broker 0", 1)
    assert lease["metadata"]["labels"] == others["labels"]
    assert set(lease["metadata"]["annotations"]) == {ANNOTATION, "meta.helm.sh/release-name"}
    assert await b.read() == seen


async def test_a_lease_whose_labels_somebody_changes_is_written_on(lease_api: LeaseApi, coordinators: Any) -> None:
    """As an upgrade of the chart does, or `kubectl label`: the Lease has another version then, and the record has not. Whoever
    saw the record before may write the next one, leader or not.
    """
    path = path_of(coordinators)

    def labelled(value: str) -> None:
        lease = lease_api.leases[path]
        metadata = {**lease["metadata"], "labels": {"helm.sh/chart": value}}
        lease_api.put(path, {**lease, "metadata": metadata}, "MODIFIED")

    a, b = coordinators.on_lease(KubernetesApi()), coordinators.on_lease(KubernetesApi())
    seen = await a.compare_and_set(await a.compare_and_set(None, FIRST), FIRST.elected(0))
    assert seen is not None
    theirs = await b.read()
    labelled("evenq-1")
    renewed = await a.compare_and_set(seen, seen.record.renewed())
    assert renewed is not None, "the leader goes on writing"
    assert await b.compare_and_set(theirs, seen.record.elected(0)) is None, "the record is another one by now"
    theirs = await b.read()
    labelled("evenq-2")
    assert theirs is not None
    assert await b.compare_and_set(theirs, theirs.record.elected(0)) is not None, "another copy may be elected"
    assert await a.compare_and_set(renewed, renewed.record.renewed()) is None


async def test_a_watch_goes_on_when_connections_end_and_when_its_place_is_too_old(
    lease_api: LeaseApi, coordinators: Any
) -> None:
    a, b = coordinators.on_lease(KubernetesApi()), coordinators.on_lease(KubernetesApi())
    seen = await a.compare_and_set(None, FIRST)
    lease_api.oldest = lease_api.version + 1  # the record is quiet, others are not: every place is too old
    watch = b.watch()
    assert await anext(watch) == seen
    for _ in range(2):
        waiting = asyncio.ensure_future(anext(watch))
        await asyncio.to_thread(until, lambda: lease_api.watching == 1, "a watch")
        seen = await a.compare_and_set(seen, seen.record.renewed())
        assert await asyncio.wait_for(waiting, 60) == seen
        lease_api.end_watches()
    asked = [query for verb, query in lease_api.calls if verb == "WATCH"]
    assert any("resourceVersion" in query for query in asked)
    assert any("resourceVersion" not in query for query in asked), "begun again with what there is"
    assert all("fieldSelector" in query for query in asked), "rights for one name are enough"
    await watch.aclose()
    await asyncio.to_thread(until, lambda: _followers() == 0, "threads of the watch end")


def _followers() -> int:
    return sum(thread.name.startswith("watch Lease") for thread in threading.enumerate())


async def test_a_silent_watch_is_left_and_the_record_read_again(lease_api: LeaseApi, coordinators: Any) -> None:
    timing = RemoteTiming(total_ms=20_000, silence_ms=300, retry_ms_max=100)
    a, b = coordinators.on_lease(KubernetesApi()), coordinators.on_lease(KubernetesApi(), timing=timing)
    seen = await a.compare_and_set(None, FIRST)
    watch = b.watch()
    assert await anext(watch) == seen
    lease_api.history.clear()
    lease = lease_api.leases[path_of(coordinators)]
    later = lease_api.version = lease_api.version + 1
    lease["metadata"]["resourceVersion"] = str(later)  # a change that no watch tells
    assert (await asyncio.wait_for(anext(watch), 60)).token == str(later)
    await watch.aclose()


async def test_an_answer_that_was_lost_is_found_by_the_number_of_the_write(
    lease_api: LeaseApi, coordinators: Any
) -> None:
    a = coordinators.on_lease(KubernetesApi())
    seen = await a.compare_and_set(None, FIRST)
    lease_api.lose_answers = 1
    won = await a.compare_and_set(seen, FIRST.elected(0))
    assert won is not None
    assert await a.read() == won
    assert sum(verb == "PUT" for verb, _ in lease_api.calls) == 2


@pytest.mark.parametrize("trouble", [pytest.param("silent", marks=pytest.mark.slow), "500", "403"])
@pytest.mark.slow
async def test_an_api_server_that_is_away_is_unknown_in_bounded_time_and_said_once(
    lease_api: LeaseApi, coordinators: Any, caplog: pytest.LogCaptureFixture, trouble: str
) -> None:
    caplog.set_level(logging.INFO)
    a = coordinators.on_lease(KubernetesApi(), timing=SHORT)
    seen = await a.compare_and_set(None, FIRST)
    watch = a.watch()
    assert await anext(watch) == seen
    if trouble == "silent":
        lease_api.pause()
    else:
        lease_api.status_of = dict.fromkeys(("GET", "PUT", "POST", "WATCH"), int(trouble))
    lease_api.end_watches()
    began = time.monotonic()
    for call in (a.read(), a.compare_and_set(seen, FIRST.elected(0)), anext(watch)):
        with pytest.raises(CoordinatorUnknown, match=r"the group record Lease default/.* cannot be") as caught:
            await asyncio.wait_for(call, 60)
        assert ("give the service account a role" in str(caught.value)) == (trouble == "403")
    assert time.monotonic() - began < 60
    lease_api.pause(paused=False)
    lease_api.status_of = {}
    now = await a.read()
    assert now.record in {FIRST, FIRST.elected(0)}
    assert await a.compare_and_set(now, now.record.renewed()) is not None
    said = [record.message for record in caplog.records if "evenq_broker" in record.name]
    assert sum("no other copy can be elected meanwhile" in line for line in said) == 1
    assert sum("is reached again" in line for line in said) == 1


async def test_a_lease_from_a_backup_and_one_that_is_gone_are_refused(lease_api: LeaseApi, coordinators: Any) -> None:
    a = coordinators.on_lease(KubernetesApi(), broker="a")
    first = await a.compare_and_set(None, FIRST)
    backup = lease_api.leases[path_of(coordinators)]
    await a.compare_and_set(first, FIRST.elected(0))
    watch = a.watch()
    await anext(watch)
    lease_api.put(path_of(coordinators), backup)
    for one in (a, coordinators.on_lease(KubernetesApi(), broker="a")):
        with pytest.raises(RecordWentBack, match=r"Lease default/.* is at epoch 0, version 1"):
            await one.read()
        with pytest.raises(RecordWentBack):
            await one.compare_and_set(first, FIRST.elected(1))
    waiting = asyncio.ensure_future(anext(watch))
    lease_api.put(path_of(coordinators), backup, "DELETED")
    with pytest.raises(RecordWentBack):
        await asyncio.wait_for(waiting, 60)
    with pytest.raises(RecordWentBack, match="is gone"):
        await a.compare_and_set(None, FIRST)
