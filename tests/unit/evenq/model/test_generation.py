"""Decisions have one order, and one definition for all who fence by it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import evenq
from evenq.model import NO_GENERATION, Generation

ROOT = Path(evenq.__file__).parent.parent.parent


def test_the_newer_leader_wins_and_then_the_counter() -> None:
    ordered = [NO_GENERATION, Generation(0, 1), Generation(1, 0), Generation(1, 7), Generation(2, 0)]
    assert sorted([*ordered[2:], *ordered[:2]]) == ordered
    assert Generation() == NO_GENERATION


@pytest.mark.parametrize(
    "name",
    [
        "AssignmentChanged", "BrokerLeaving", "Generation", "MembersChanged", "OffsetsReset", "QueueWanted",
        "SettingsChanged",
    ],
)  # fmt: skip
def test_brokers_clients_and_rebalancers_share_one_definition(name: str) -> None:
    homes = [
        path.relative_to(ROOT).as_posix()
        for top in ("src", "services", "spark")
        for path in (ROOT / top).rglob("*.py")
        if "stubs" not in path.parts and f"class {name}" in (text := path.read_text(encoding="utf-8"))
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ClassDef) and node.name == name
    ]
    assert len(homes) == 1, homes
    assert homes[0].startswith("src/evenq/model/")
