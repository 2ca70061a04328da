"""Strategies of installed packages: a package is written to a folder on the import path, as an installer would."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from evenq.allocation import Context, by_name, divide, known_names
from evenq.allocation.supplied import OFFERED_MAX, offered
from evenq.errors import BadRequest
from evenq.model import MessageQueue

QUEUES = [MessageQueue("T", "b", index) for index in range(4)]
IDS = ["r1@a", "r1@b"]

CODE = """
class Reversed:
    name = "REVERSED"
    def allocate(self, group, own_id, queues, ids):
        return list(queues[::-1][list(ids).index(own_id)::len(ids)])

class Greedy(Reversed):
    name = "GREEDY"
    def allocate(self, group, own_id, queues, ids):
        return list(queues)

class Broken(Reversed):
    name = "BROKEN"
    def allocate(self, group, own_id, queues, ids):
        return 1 / 0

class Misnamed(Reversed):
    pass

class Nothing:
    name = "NOTHING"

class Knowing(Reversed):
    name = "KNOWING"
    def divide_in(self, group, queues, ids, context):
        return {own: [q for q in queues if context.owners.get(q) == own] for own in ids}

def unmade():
    raise RuntimeError("no luck")
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, dict[str, str]], None]]:
    """Install a package that offers these entry points."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def do(package: str, points: dict[str, str]) -> None:
        (tmp_path / f"{package}.py").write_text(CODE, encoding="utf-8")
        info = tmp_path / f"{package}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n", encoding="utf-8")
        lines = "".join(f"{name} = {package}:{what}\n" for name, what in points.items())
        (info / "entry_points.txt").write_text(f"[evenq.allocation]\n{lines}", encoding="utf-8")
        importlib.invalidate_caches()
        offered.cache_clear()

    offered.cache_clear()
    yield do
    offered.cache_clear()
    for name in ("evenq_test_ours", "evenq_test_theirs"):
        sys.modules.pop(name, None)


def test_a_strategy_of_an_installed_package_is_found_named_and_used(install) -> None:
    install("evenq_test_ours", {"REVERSED": "Reversed"})
    assert known_names()[-1] == "REVERSED"
    strategy = by_name("REVERSED")
    assert strategy.name == "REVERSED"
    assert strategy.allocate("g", IDS[0], QUEUES, IDS) == [QUEUES[3], QUEUES[1]]
    assert divide(strategy, "g", QUEUES, IDS) == {IDS[0]: [QUEUES[3], QUEUES[1]], IDS[1]: [QUEUES[2], QUEUES[0]]}
    assert divide(strategy, "g", [], IDS) == {IDS[0]: [], IDS[1]: []}
    assert by_name("MACHINE_ROOM_NEARBY-REVERSED").name == "MACHINE_ROOM_NEARBY-REVERSED"


def test_a_strategy_that_knows_contexts_gets_one(install) -> None:
    install("evenq_test_ours", {"KNOWING": "Knowing"})
    shares = divide(by_name("KNOWING"), "g", QUEUES, IDS, Context(owners={QUEUES[2]: IDS[1]}))
    assert shares == {IDS[0]: [], IDS[1]: [QUEUES[2]]}


@pytest.mark.parametrize(
    ("name", "what", "result"),
    [
        ("MISNAMED", "Misnamed", "'MISNAMED' .* has the name 'REVERSED'; both must be the same"),
        ("NOTHING", "Nothing", "'NOTHING' .* has no method allocate"),
        ("UNMADE", "unmade", "'UNMADE' could not be made: RuntimeError: no luck; fix or uninstall"),
        ("ABSENT", "Absent", "'ABSENT' could not be loaded: AttributeError"),
    ],
)
def test_what_is_no_strategy_is_refused_with_the_reason(install, name, what, result) -> None:
    install("evenq_test_ours", {name: what})
    with pytest.raises(BadRequest, match=result):
        by_name(name)


def test_a_strategy_that_fails_or_gives_a_queue_twice_is_told_as_its_own_error(install) -> None:
    install("evenq_test_ours", {"BROKEN": "Broken", "GREEDY": "Greedy"})
    with pytest.raises(BadRequest, match="'BROKEN' failed: ZeroDivisionError"):
        by_name("BROKEN").allocate("g", IDS[0], QUEUES, IDS)
    with pytest.raises(BadRequest, match="'GREEDY' gave queue T@b:0 twice"):
        divide(by_name("GREEDY"), "g", QUEUES, IDS)


def test_two_packages_with_one_name_are_refused_and_our_names_stay_ours(install) -> None:
    install("evenq_test_ours", {"REVERSED": "Reversed", "AVG": "Greedy"})
    install("evenq_test_theirs", {"REVERSED": "Reversed"})
    with pytest.raises(BadRequest, match="'REVERSED' is offered 2 times"):
        by_name("REVERSED")
    assert divide(by_name("AVG"), "g", QUEUES, IDS)[IDS[0]] == QUEUES[:2]
    assert known_names().count("AVG") == 1


def test_odd_names_and_names_beyond_the_limit_are_not_known(install) -> None:
    install(
        "evenq_test_ours", {"with-dash": "Reversed", "x" * 65: "Reversed"} | {f"N{n:03}": "Reversed" for n in range(70)}
    )
    assert len(offered()) == OFFERED_MAX
    assert "N000" in known_names()
    with pytest.raises(BadRequest, match="no allocate strategy is named 'with-dash'") as info:
        by_name("with-dash")
    assert len(str(info.value)) < 400


@pytest.mark.parametrize("name", ["NONE", "none"])
def test_no_package_can_offer_the_name_that_takes_a_strategy_away(install, name: str) -> None:
    install("evenq_test_ours", {name: "Reversed"})
    assert name not in known_names()
    with pytest.raises(BadRequest, match="is not a strategy: it removes that of a group"):
        by_name(name)
    with pytest.raises(BadRequest):
        by_name(f"MACHINE_ROOM_NEARBY-{name}")
