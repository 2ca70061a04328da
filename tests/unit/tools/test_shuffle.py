"""`--shuffle=SEED` and `EVENQ_TEST_SLOW=K/N` of tests/conftest.py: the order, and the share of slow tests that runs."""

from __future__ import annotations

import random
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.conftest import in_share, shuffle


def order_of(seed: str) -> list[tuple[Path, int]]:
    items = [SimpleNamespace(path=Path(f"test_{file}.py"), number=number) for file in range(9) for number in range(9)]
    given = cast("list[pytest.Item]", items)
    shuffle(given, seed)
    return [(item.path, cast("Any", item).number) for item in given]


def test_a_seed_gives_one_order_of_files_and_of_their_tests_and_another_seed_another() -> None:
    random.seed(0)  # nothing else that draws decides
    first = order_of("1")
    random.seed(1)
    assert order_of("1") == first
    assert order_of("2") != first
    assert sorted(first) == sorted(order_of("2"))
    assert sorted(first) != first
    files = [path for path, _ in groupby(first, key=lambda one: one[0])]
    assert len(files) == 9, "what a file starts for all its tests is started once"
    assert files != sorted(files)
    assert any([number for path, number in first if path == file] != list(range(9)) for file in files)


def test_each_slow_test_is_in_one_of_four_shares_that_follow_one_another() -> None:
    tests = [f"tests/test_a.py::test_b[{number}]" for number in range(400)]
    shares = [{test for test in tests if in_share(test, f"{number}/4")} for number in (7, 8, 9, 10)]
    assert sum(len(share) for share in shares) == len(set[str]().union(*shares)) == 400
    assert all(50 < len(share) < 150 for share in shares), "about as many in each"
    assert shares[0] == {test for test in tests if in_share(test, "11/4")}, "the fifth landing begins anew"
