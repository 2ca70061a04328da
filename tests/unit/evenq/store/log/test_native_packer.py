"""The compiled packer of messages leaves the same bytes and the same state as the one in Python, at every limit.

Without `evenq_native` the tests are skipped; not if `EVENQ_TEST_ALL` is set and cargo is installed: there they fail.
`test_packer.py` runs its tests with both packers. More calls: `make plain-sends`.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from evenq_proofs.native_module import native_module

from evenq.errors import BadRequest
from evenq.store.log.native_packer import NativePacker, packer_of
from evenq.store.log.packer import Packer

sys.path.insert(0, str(Path(__file__).resolve().parent))
import packed_calls as made


@pytest.fixture(scope="module")
def native() -> ModuleType:
    """The accelerator."""
    return native_module()


@pytest.mark.parametrize("seed", range(4))
def test_both_packers_leave_the_same_after_generated_calls(native: ModuleType, seed: int) -> None:
    found = made.compare(native, 400, 100 + seed)
    assert 100 < found.taken < found.calls, "most are taken, and some are left to Python"
    assert found.refused > 20


@pytest.mark.parametrize("over", [-1, 0, 1, 88])
def test_a_call_that_ends_at_the_end_of_a_file_is_taken_and_one_byte_more_is_not(
    native: ModuleType, message: Any, over: int
) -> None:
    taken: list[bool] = []

    def noted(*given: Any) -> Any:
        packed = native.pack_messages(*given)
        taken.append(packed is not None)
        return packed

    left = []
    for module in (None, SimpleNamespace(pack_messages=noted)):
        packer = packer_of(module, {}, segment_bytes=4_096, end=0)
        batch = packer.pack([message(b"", system=b""), message(bytes(4_096 - 2 * 88 + over), system=b"")], 5, 0)
        left.append([(run.start, run.seals, b"".join(run.parts)) for run in batch.runs])
    assert left[0] == left[1]
    assert taken == [over <= 0]


def other_byte(data: bytes, at: int) -> bytes:
    changed = bytearray(data)
    changed[at] ^= 1
    return bytes(changed)


def places_of(packed: Any, name: str, change: int) -> Any:
    for _, _, _, messages in packed[2]:
        setattr(messages[-1], name, getattr(messages[-1], name) + change)
    return packed


FAULTS: dict[str, Callable[[Any], Any]] = {
    "size": lambda found: (other_byte(found[0], 3), *found[1:]),
    "checksum": lambda found: (other_byte(found[0], 11), *found[1:]),
    "flag of the first message": lambda found: (other_byte(found[0], 15), *found[1:]),
    "epoch": lambda found: (other_byte(found[0], 23), *found[1:]),
    "queue offset": lambda found: (other_byte(found[0], 39), *found[1:]),
    "head": lambda found: (other_byte(found[0], -1), *found[1:]),
    "one byte too few": lambda found: (found[0][:-1], *found[1:]),
    "end": lambda found: (found[0], found[1] + 1, found[2]),
    "end of a queue": lambda found: (*found[:2], [(one[0], one[1] + 1, *one[2:]) for one in found[2]]),
    "entry of a queue": lambda found: (*found[:2], [(*one[:2], other_byte(one[2], -9), one[3]) for one in found[2]]),
    "order of queues": lambda found: (*found[:2], found[2][::-1]),
    "messages in memory": lambda found: (*found[:2], [(*one[:3], one[3][1:]) for one in found[2]]),
    "place in the queue": lambda found: places_of(found, "queue_offset", 1),
    "place in the log": lambda found: places_of(found, "log_offset", 1),
    "store time": lambda found: places_of(found, "store_ms", 1),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_comparison_finds_each_planted_fault(native: ModuleType, fault: str) -> None:
    def faulty(*given: Any) -> Any:
        packed = native.pack_messages(*given)
        return packed if packed is None else FAULTS[fault](packed)

    with pytest.raises(made.Differs):
        made.compare(SimpleNamespace(pack_messages=faulty), 400, 1)


ARGUMENTS = {"end of the file": (3, 1 << 20), "synced end": (4, 1), "store time": (5, 1), "more": (6, True)}


@pytest.mark.parametrize("argument", ARGUMENTS)
def test_the_comparison_finds_each_argument_that_is_not_used(native: ModuleType, argument: str) -> None:
    at, value = ARGUMENTS[argument]

    def faulty(*given: Any) -> Any:
        return native.pack_messages(*given[:at], value, *given[at + 1 :])

    with pytest.raises(made.Differs):
        made.compare(SimpleNamespace(pack_messages=faulty), 400, 1)


def test_an_error_of_a_rule_in_python_is_raised_and_nothing_is_packed(native: ModuleType, message: Any) -> None:
    def broken(_topic_id: int, _queue_id: int) -> Any:
        raise RuntimeError("the rule failed")

    entry = message()
    with pytest.raises(RuntimeError, match="the rule failed"):
        native.pack_messages([entry], broken, 0, 4_096, 0, 5, False)
    assert (entry.queue_offset, entry.log_offset, entry.store_ms) == (-1, -1, -1)
    for answer in (None, (1, 2), (object(), -1, bytes(20), bytes(20)), (object(), 0, bytes(19), bytes(20))):
        assert native.pack_messages([entry], lambda *_, answer=answer: answer, 0, 4_096, 0, 5, False) is None


def test_a_call_that_compiled_code_does_not_take_is_refused_with_the_error_of_python(
    native: ModuleType, message: Any
) -> None:
    packer = packer_of(native, {}, segment_bytes=4_096, end=0)
    entries = [message(), message(tag=1 << 64)]
    with pytest.raises(BadRequest, match="a record does not fit the frame's fields"):
        packer.pack(entries, 5, 0)
    assert (packer.end, packer.batch, entries[0].log_offset) == (0, None, -1)


def test_without_the_accelerator_the_packer_is_the_one_in_python(native: ModuleType) -> None:
    assert type(packer_of(None, {}, segment_bytes=4_096, end=0)) is Packer
    assert type(packer_of(native, {}, segment_bytes=4_096, end=0)) is NativePacker
