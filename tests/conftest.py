"""Markers come from the folder: a test under tests/chaos is a chaos test without saying so. `--shuffle=SEED` shuffles the order."""

from __future__ import annotations

import asyncio
import gc
import inspect
import logging
import os
import random
import signal
import zlib
from collections.abc import AsyncGenerator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from evenq_proofs.held_clock import hold_clocks
from hypothesis import settings

# How long an example takes depends on what else the machine does: tests judge what is right, benchmarks how fast.
# The examples are the same in each run, so a change is judged by itself; `make properties` draws new ones.
settings.register_profile("evenq", deadline=None, derandomize=True)
settings.register_profile("new", deadline=None, max_examples=int(os.environ.get("EVENQ_TEST_EXAMPLES", "2000")))
settings.load_profile("new" if "EVENQ_TEST_EXAMPLES" in os.environ else "evenq")

hold_clocks()

# The time from a fault to the next success. A busy machine takes longer than the 30 s that the long runs allow.
os.environ.setdefault("EVENQ_TEST_RECOVERY_MS", "120000")

# Behind `&` in a shell without job control Ctrl-C is ignored, and by every process that tests start, too.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Files with secrets that others may write are refused. Tests write theirs as on a machine where files are 0644.
os.umask(0o022)

ROOT = Path(__file__).resolve().parent
LONGEST = [
    ROOT / folder / f"test_{name}.py"
    for folder, names in (
        (
            "integration",
            "access_matrix delivery_attempts front_attacks one_address replicated_group verify warm_start",
        ),
        ("spark", "loss 01_kill_loop 06_group 03_read_faults 14_sink 16_places"),
        ("helm", "kubernetes"),
    )
    for name in names.split()
]
"""Those that take a minute and more come first, in this order, so that none is left when the other workers have
nothing to do. With xdist that needs --no-loadscope-reorder, which begins with the files of most tests otherwise."""
FOLDERS = ("sim", "integration", "compat", "chaos", "live", "helm", "spark", "docs", "console")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--shuffle",
        metavar="SEED",
        help="run the files, and the tests within each file, in the random order of this seed; with xdist also pass --no-loadscope-reorder",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup(fixturedef: Any, request: pytest.FixtureRequest) -> AsyncGenerator[object, None] | None:
    """Makes the generator of an asynchronous fixture; `pytest_pyfunc_call` begins and ends it in the test's loop."""
    if not inspect.isasyncgenfunction(fixturedef.func):
        return None
    made = fixturedef.func(**{name: request.getfixturevalue(name) for name in fixturedef.argnames})
    fixturedef.cached_result = (made, fixturedef.cache_key(request), None)
    return made


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Runs an `async def` test in a loop of its own, made by its fixture `loop_factory` if it has one. A fixture that is
    an asynchronous generator begins and ends in it.
    """
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None

    async def run() -> None:
        async with AsyncExitStack() as stack:
            values = dict(pyfuncitem.funcargs)
            for name, value in values.items():
                if isinstance(value, AsyncGenerator):
                    values[name] = await stack.enter_async_context(asynccontextmanager(lambda value=value: value)())
            await pyfuncitem.obj(**{name: values[name] for name in inspect.signature(pyfuncitem.obj).parameters})

    with asyncio.Runner(loop_factory=pyfuncitem.funcargs.get("loop_factory")) as runner:
        runner.run(run())
    return True


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        folder = item.path.relative_to(ROOT).parts[0]
        if folder in FOLDERS:
            item.add_marker(folder)
    share = os.environ.get("EVENQ_TEST_SLOW")
    if share:
        left_out = {item for item in items if item.get_closest_marker("slow") and not in_share(item.nodeid, share)}
        config.hook.pytest_deselected(items=[*left_out])
        items[:] = [item for item in items if item not in left_out]
    seed = config.getoption("--shuffle")
    if seed is not None:
        shuffle(items, seed)
    else:
        first = {path: place for place, path in enumerate(LONGEST)}
        items.sort(key=lambda item: first.get(item.path, len(first)))  # a stable sort: nothing else moves


def pytest_collection_finish() -> None:
    """Keeps the collected tests out of later garbage collections: there are thousands."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="module")
def _garbage_of_file() -> Iterator[None]:
    """Reports what a file left open in that file, not in a later one that makes more garbage."""
    yield
    gc.collect()


@pytest.fixture(autouse=True, scope="module")
def _log_levels_of_file() -> Iterator[None]:
    """Fails for a file that leaves a logger of ours with another level: later tests of this process would miss lines."""
    before = _log_levels()
    yield
    assert _log_levels() == before, "a logger kept a level that one of these tests gave it"


def _log_levels() -> dict[str, int]:
    named = logging.Logger.manager.loggerDict.items()
    levels = {name: one.level for name, one in named if name.startswith("evenq") and isinstance(one, logging.Logger)}
    return {name: level for name, level in levels.items() if level}


def in_share(nodeid: str, share: str) -> bool:
    """Returns whether a slow test is in a share such as 2/4. N may be greater than the number of shares: 6/4 is 2/4."""
    number, shares = map(int, share.split("/"))
    return zlib.crc32(nodeid.encode()) % shares == number % shares


def shuffle(items: list[pytest.Item], seed: str) -> None:
    """Order the files by chance, and the tests of each file; a file stays in one piece, as what it starts for all its tests."""
    chance = random.Random(seed)  # the same in each worker of xdist, which must agree on the order
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    order = list(files)
    chance.shuffle(order)
    for path in order:
        chance.shuffle(files[path])
    items[:] = [item for path in order for item in files[path]]
