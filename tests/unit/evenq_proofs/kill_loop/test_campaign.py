"""What the next cycle does."""

import random
from collections import Counter

from evenq_proofs.kill_loop.campaign import Campaign, Ending, Needs, needs_of

from evenq.runtime.failpoints import POINTS, Armed


def planned(campaign, **how):
    return campaign.plan(list(POINTS), **{"first": False, "killed": True, "kill_ms": (1, 9), **how})


def test_the_point_that_was_hit_least_comes_next_until_all_were(tmp_path):
    campaign = Campaign(random.Random(1), tmp_path / "counts")
    seen = Counter()
    for number in range(6 * len(POINTS)):
        cycle = planned(campaign, first=number % 5 == 0)
        if cycle.ending is Ending.POINT:
            name = cycle.point.partition(":")[0]
            seen[name] += 1
            armed = Armed([], tmp_path / "counts", end=lambda: None)
            armed._count(name, hit=True)
    assert set(seen) == set(POINTS)
    assert min(seen.values()) >= 2


def test_a_point_is_planned_only_where_it_can_be_passed(tmp_path):
    campaign = Campaign(random.Random(2), tmp_path / "counts")
    for _ in range(300):
        assert planned(campaign, first=True).needs not in {Needs.TORN, Needs.REBUILD}
        assert planned(campaign, first=False).needs is not Needs.FRESH
        assert planned(campaign, killed=False).needs not in {Needs.TORN, Needs.REBUILD, Needs.FRESH}


def test_what_a_point_needs_follows_from_its_name():
    assert needs_of("identity.written") is Needs.FRESH
    assert needs_of("recovery.cutting") is Needs.TORN
    assert needs_of("close.marked") is Needs.CLEAN_STOP
    assert needs_of("group.written") is Needs.NOTHING


def test_the_same_seed_plans_the_same(tmp_path):
    first, second = (Campaign(random.Random(3), tmp_path / "counts") for _ in range(2))
    assert [planned(first) for _ in range(50)] == [planned(second) for _ in range(50)]
