"""The loop thread of the sync face."""

from __future__ import annotations

import asyncio
import os
import warnings

import pytest

from evenq.client.loops.background import Background
from evenq.errors import Unsupported


async def one() -> int:
    return 1


def test_there_is_one_per_process_and_it_runs_coroutines() -> None:
    background = Background.shared()
    assert background is Background.shared()
    assert background.run(one()) == 1


def test_a_blocking_call_inside_the_loop_thread_is_refused_instead_of_hanging() -> None:
    background = Background.shared()

    async def story() -> None:
        await asyncio.sleep(0)
        background.run(one())

    with pytest.raises(Unsupported, match="loop thread"):
        background.run(story())


def test_after_a_fork_the_child_makes_its_own_and_refuses_the_parents() -> None:
    background = Background.shared()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # forking beside threads is the point here
        child = os.fork()
    if child == 0:
        code = 1
        try:
            background.run(one())
        except Unsupported:
            code = 0 if Background.shared() is not background and Background.shared().run(one()) == 1 else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
