"""A group's configuration checks itself."""

import pytest

from evenq.model import GroupConfig, StartFrom


def test_the_default_is_16_retries_and_what_comes_from_now_on():
    group = GroupConfig(name="g", group_id=1)
    assert (group.max_attempts, group.start_from, group.ordered) == (17, StartFrom.LAST, False)


@pytest.mark.parametrize("attempts", [0, 1001, -5])
def test_attempts_have_bounds(attempts):
    with pytest.raises(ValueError, match=f"has {attempts} max_attempts, the range is 1 to 1000"):
        GroupConfig(name="g", group_id=1, max_attempts=attempts)


def test_the_name_is_checked():
    with pytest.raises(ValueError, match="group name is empty"):
        GroupConfig(name="", group_id=1)
