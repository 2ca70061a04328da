"""Plays one seed: the world that its number stands for, with or without a planted fault."""

from __future__ import annotations

import gc
import logging

from evenq_sim.edges import replaced
from evenq_sim.lifecycle_plan import LIFECYCLES, lifecycle_plan
from evenq_sim.lifecycles import LifecycleWorld
from evenq_sim.plants import changes
from evenq_sim.scenario import plan_of
from evenq_sim.world import Outcome, World


def run(seed: int, *, plant: str = "", show_open: bool = False, verbose: bool = False) -> Outcome:
    """Play one seed. `show_open`: also report problems that a known open fault explains."""
    world = world_of(seed, show_open=show_open)
    level = logging.root.manager.disable
    logging.disable(logging.NOTSET if verbose else logging.CRITICAL)
    collects = gc.isenabled()
    gc.disable()  # a collection would end forgotten generators at another moment each time
    try:
        with replaced(changes(plant)):
            return world.play()
    finally:
        logging.disable(level)
        if collects:
            gc.enable()


def world_of(seed: int, *, show_open: bool = False) -> World:
    """The world of a seed."""
    if seed < LIFECYCLES:
        return World(plan_of(seed))
    return LifecycleWorld(lifecycle_plan(seed), show_open=show_open)
