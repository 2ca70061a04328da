"""The request mode table."""

from __future__ import annotations

import pytest
from evenq_rebalancer.core.modes import ModeTable, RequestMode, RequestModeSetting

from evenq.errors import BadRequest, TooManyRequests


def test_what_is_set_is_found_and_replaced() -> None:
    table = ModeTable(entries_max=1)
    assert table.get("g", "T") is None
    assert table.put("g", "T", RequestModeSetting(mode=RequestMode.POP, pop_share_queue_num=2))
    assert not table.put("g", "T", RequestModeSetting(mode=RequestMode.POP, pop_share_queue_num=2))
    assert table.put("g", "T", RequestModeSetting(mode=RequestMode.PULL))
    assert table.get("g", "T") == RequestModeSetting(mode=RequestMode.PULL)


def test_a_full_table_refuses_new_pairs_only() -> None:
    table = ModeTable(entries_max=1)
    table.put("g", "T", RequestModeSetting(mode=RequestMode.PULL))
    table.put("g", "T", RequestModeSetting(mode=RequestMode.POP))
    with pytest.raises(TooManyRequests, match="request_modes_max"):
        table.put("g", "U", RequestModeSetting(mode=RequestMode.PULL))


@pytest.mark.parametrize(("mode", "number"), [(RequestMode.POP, -1), (RequestMode.POP, 10_001), (RequestMode.PULL, 1)])
def test_a_share_number_out_of_range_or_with_pull_is_refused(mode, number) -> None:
    with pytest.raises(BadRequest, match=f"pop_share_queue_num is {number}"):
        RequestModeSetting(mode=mode, pop_share_queue_num=number)
