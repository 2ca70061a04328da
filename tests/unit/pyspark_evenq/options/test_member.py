"""Which options of a membership go together."""

from __future__ import annotations

import pytest
from pyspark_evenq.options.member import _OF_ALL, _OF_SHARES, MEMBER_NAMES, membership

from evenq.errors import SettingsError


@pytest.mark.parametrize("name", sorted(MEMBER_NAMES))
def test_an_option_of_members_is_refused_where_there_is_none(name: str) -> None:
    with pytest.raises(SettingsError, match=f"option {name} is for streams"):
        membership({name: "x"}, streaming=False, group="g")
    with pytest.raises(SettingsError, match=f"option {name} is for members of a group"):
        membership({name: "x"}, streaming=True, group="")


@pytest.mark.parametrize(
    ("name", "assignment"),
    [*((name, "shared") for name in sorted(_OF_ALL)), *((name, "exclusive") for name in sorted(_OF_SHARES))],
)
def test_an_option_of_one_assignment_is_refused_with_the_other(name: str, assignment: str) -> None:
    with pytest.raises(SettingsError, match=f"option {name} does not go with assignment={assignment}"):
        membership({name: "x", "assignment": assignment}, streaming=True, group="g")
