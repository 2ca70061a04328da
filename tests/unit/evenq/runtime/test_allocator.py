"""Memory that was had once is not asked of the system again and again."""

import os
import platform
import subprocess
import sys

import pytest

ROUNDS = 50
PROGRAM = f"""
import resource
from evenq.runtime.allocator import keep_freed_memory

def faults():
    for number in range({ROUNDS}):
        block = bytearray(1_100_000 + number)  # a block of a scan, and what is sent of it
        answer = bytes(block)
        del block, answer
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def added():
    return -faults() + faults()

before = added()
keep_freed_memory()
print(before, added())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallopt is glibc's")
@pytest.mark.parametrize("chosen", [{}, {"MALLOC_TRIM_THRESHOLD_": "131072"}])
@pytest.mark.slow
def test_blocks_that_come_and_go_cost_their_pages_once_unless_the_environment_decides(chosen):
    environment = {name: value for name, value in os.environ.items() if "MALLOC" not in name and "GLIBC" not in name}
    output = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment | chosen, capture_output=True, text=True, check=True
    ).stdout
    before, after = map(int, output.split())
    pages = ROUNDS * 1_100_000 // 4096
    assert before > pages // 2, "the C library keeps it by itself, so this test shows nothing"
    if chosen:
        assert after > pages // 2
    else:
        assert after < pages // 50


def test_a_c_library_without_mallopt_is_left_alone(monkeypatch):
    from evenq.runtime import allocator

    monkeypatch.setattr(allocator, "_done", False)
    monkeypatch.setattr(allocator.ctypes, "CDLL", lambda _: object())
    for name in allocator._SETTINGS:
        monkeypatch.delenv(name, raising=False)
    allocator.keep_freed_memory()
    assert allocator._done, "and it is not asked again"


def test_it_is_asked_for_once(monkeypatch):
    from evenq.runtime import allocator

    asked = []
    monkeypatch.setattr(allocator, "_done", False)
    monkeypatch.setattr(allocator.ctypes, "CDLL", lambda name: asked.append(name) or object())
    for name in allocator._SETTINGS:
        monkeypatch.delenv(name, raising=False)
    allocator.keep_freed_memory()
    allocator.keep_freed_memory()
    assert len(asked) == 1


ARENAS = """
import threading
from evenq.runtime.allocator import use_one_arena

use_one_arena()
begin = threading.Barrier(4)

def allocate():
    begin.wait()
    kept = [bytes(5_000) for _ in range(2_000)]

threads = [threading.Thread(target=allocate) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
import ctypes
ctypes.CDLL(None).malloc_stats()
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallopt is glibc's")
@pytest.mark.parametrize(("chosen", "one"), [({}, True), ({"MALLOC_ARENA_MAX": "4"}, False)])
def test_all_threads_share_an_arena_unless_the_environment_decides(chosen, one):
    environment = {name: value for name, value in os.environ.items() if "MALLOC" not in name and "GLIBC" not in name}
    shown = subprocess.run(
        [sys.executable, "-c", ARENAS], env=environment | chosen, capture_output=True, text=True, check=True
    ).stderr
    assert (shown.count("Arena ") == 1) is one
