"""A topic's configuration checks itself."""

import pytest

from evenq.model import Permission, TopicConfig


@pytest.mark.parametrize("counts", [{"read_queues": 0}, {"write_queues": 0}, {"read_queues": 4097}])
def test_queue_counts_have_bounds(counts):
    with pytest.raises(ValueError, match="the range is 1 to 4096"):
        TopicConfig(name="t", topic_id=1, **counts)
    assert TopicConfig(name="t", topic_id=1, read_queues=4096, write_queues=1).read_queues == 4096


def test_the_name_is_checked():
    with pytest.raises(ValueError, match="'a b' holds"):
        TopicConfig(name="a b", topic_id=1)


def test_permissions_say_who_may_do_what():
    assert [p for p in Permission if p.readable] == [Permission.READ, Permission.READ_WRITE]
    assert [p for p in Permission if p.writable] == [Permission.WRITE, Permission.READ_WRITE]
