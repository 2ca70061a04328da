"""Chunks follow the listener's speed."""

from evenq.client.core.reading.chunks import ChunkSizer


def test_a_fast_listener_gets_full_chunks_and_a_slow_one_single_messages() -> None:
    sizer = ChunkSizer(64)
    assert sizer.size == 1
    for _ in range(50):
        sizer.learn(sizer.size, 0.01 * sizer.size)
    assert sizer.size == 64
    for _ in range(50):
        sizer.learn(1, 100)
    assert sizer.size == 1
