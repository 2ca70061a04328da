"""Headers and properties come back as they were sent."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenq.local import pairs

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x01\x02"), max_size=20)


@given(st.dictionaries(TEXT.filter(bool), TEXT, max_size=8))
@pytest.mark.slow
def test_pairs_come_back_in_their_order(sent):
    assert list(pairs.decode(pairs.encode(sent, "headers")).items()) == list(sent.items())


def test_no_pairs_are_no_bytes():
    assert pairs.encode(None, "headers") == pairs.encode({}, "headers") == b""
