"""The watch over Kubernetes, with an API in memory: lists, changes, a watch that is too far behind, no right to look."""

from __future__ import annotations

import logging
import queue
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from evenq_proofs.waiting import until_async
from evenq_rebalancer.core.places import MemberPlace
from evenq_rebalancer.loops import topology as module
from evenq_rebalancer.loops.topology import TopologyWatch

from evenq.errors import Error, Forbidden
from evenq.runtime.clock import SystemClock
from evenq.serving.kubernetes.api import Expired


def pod(uid: str, ip: str, *, node: str = "n1", version: str = "1", leaving: bool = False) -> dict[str, Any]:
    owner = {"kind": "StatefulSet", "name": "web", "controller": True}
    metadata: dict[str, Any] = {"uid": uid, "name": uid, "namespace": "shop", "ownerReferences": [owner]}
    metadata["resourceVersion"] = version
    if leaving:
        metadata["deletionTimestamp"] = "now"
    return {"metadata": metadata, "spec": {"nodeName": node}, "status": {"podIP": ip}}


def node(name: str, zone: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": {"topology.kubernetes.io/zone": zone}}}


class FakeApi:
    """The edge; methods are called by the watch's threads."""

    namespace = "shop"

    def __init__(self) -> None:
        self.lists: dict[str, list[dict[str, Any]] | Error] = {"pods": [], "nodes": []}
        self.events: dict[str, queue.Queue[Any]] = {"pods": queue.Queue(), "nodes": queue.Queue()}
        self.listed_count = {"pods": 0, "nodes": 0}
        self.versions: list[str] = []

    def listed(self, path: str) -> tuple[list[dict[str, Any]], str]:
        kind = path.rpartition("/")[2]
        self.listed_count[kind] += 1
        answer = self.lists[kind]
        if isinstance(answer, Error):
            raise answer
        return answer, "10"

    def watched(self, path: str, version: str) -> Iterator[tuple[str, dict[str, Any]]]:
        kind = path.rpartition("/")[2]
        if kind == "pods":
            self.versions.append(version)
        while True:
            event = self.events[kind].get(timeout=60)
            if event is None:
                return
            if isinstance(event, Error):
                raise event
            yield event


class Stage:
    def __init__(self) -> None:
        self.api = FakeApi()
        self.changed: list[frozenset[str] | None] = []
        api: Any = self.api
        self.watch = TopologyWatch(api, clock=SystemClock(), changed=self.changed.append)


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    stage = Stage()
    try:
        yield stage
    finally:
        stage.watch.stop()
        for events in stage.api.events.values():
            events.put(None)


async def test_lists_and_changes_become_zones_and_places_and_the_loop_is_told_of_the_addresses(stage: Stage) -> None:
    stage.api.lists = {"pods": [pod("a", "x")], "nodes": [node("n1", "north")]}
    stage.watch.start()
    await until_async(lambda: stage.watch.zone_of("x") == "north")
    assert stage.watch.place_of("x") == MemberPlace("shop/StatefulSet/a", leaving=False)
    stage.api.events["pods"].put(("MODIFIED", pod("a", "x", leaving=True, version="11")))
    await until_async(lambda: stage.watch.place_of("x") == MemberPlace("shop/StatefulSet/a", leaving=True))
    stage.api.events["pods"].put(("BOOKMARK", {"metadata": {"resourceVersion": "12"}}))
    stage.api.events["pods"].put(None)  # the watch ends by itself and goes on from where it was
    await until_async(lambda: stage.api.versions == ["10", "12"])
    stage.api.events["nodes"].put(("DELETED", node("n1", "north")))
    await until_async(lambda: stage.watch.zone_of("x") == "")
    stage.api.events["pods"].put(("DELETED", pod("a", "x")))
    await until_async(lambda: len(stage.changed) >= 4)
    assert set(stage.changed) == {frozenset({"x"})}
    assert stage.api.listed_count["pods"] == 1


async def test_a_watch_that_is_too_far_behind_lists_again(stage: Stage) -> None:
    stage.api.lists["pods"] = [pod("a", "x")]
    stage.watch.start()
    await until_async(lambda: stage.watch.place_of("x") is not None)
    stage.api.lists["pods"] = [pod("b", "y")]
    stage.api.events["pods"].put(Expired("410"))
    await until_async(lambda: stage.watch.place_of("y") is not None)
    assert stage.watch.place_of("x") == MemberPlace("shop/StatefulSet/a", leaving=True)


async def test_without_the_right_to_look_there_is_one_warning_and_nothing_else(
    stage: Stage, caplog, monkeypatch
) -> None:
    monkeypatch.setattr(module, "FORBIDDEN_RETRY_S", 0.01)
    with caplog.at_level(logging.INFO):
        stage.api.lists = {"pods": Forbidden("no role"), "nodes": Forbidden("no role")}
        stage.watch.start()
        await until_async(lambda: stage.api.listed_count["pods"] > 3 and stage.api.listed_count["nodes"] > 3)
        assert stage.watch.zone_of("x") == ""
        assert stage.watch.place_of("x") is None
        stage.api.lists = {"pods": [pod("a", "x")], "nodes": [node("n1", "north")]}
        await until_async(lambda: stage.watch.zone_of("x") == "north")
    messages = [record.message for record in caplog.records]
    assert sum("cannot be watched" in message for message in messages) == 2, "one for pods, one for nodes"


@pytest.mark.parametrize("given", [{}, {"metadata": None}, {"metadata": {"uid": 5}}])
async def test_objects_that_make_no_sense_are_passed_over(stage: Stage, given: dict[str, Any]) -> None:
    stage.api.lists["pods"] = [given]
    stage.watch.start()
    stage.api.events["pods"].put(("ADDED", given))
    stage.api.events["pods"].put(("ADDED", pod("a", "x")))
    await until_async(lambda: stage.watch.place_of("x") is not None)
