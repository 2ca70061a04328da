"""A process that gets lines and says JSON objects."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from evenq_proofs.peer import Peer, wait_for_all

ECHO = """
import json, os, sys
print("not an object", flush=True)
print("to the log", file=sys.stderr, flush=True)
for line in sys.stdin:
    print(json.dumps({"done": True} if line == "stop\\n" else {"got": int(line), "home": os.environ.get("PLACE")}), flush=True)
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Peer]]:
    peers: list[Peer] = []

    def begin(**options: dict[str, str]) -> Peer:
        log_path = tmp_path / f"{len(peers)}.log"
        peers.append(Peer([sys.executable, "-c", ECHO], log_path=log_path, environment=options.get("environment")))
        return peers[-1]

    yield begin
    for one in peers:
        one.end()
        one.end()


def test_what_it_says_is_waited_for_and_kept_by_key(start: Callable[..., Peer]) -> None:
    peer = start(environment={"PLACE": "here"})
    for number in (3, 4):
        peer.write(str(number))
    peer.wait(lambda said: len(said) == 2)
    assert peer.numbers() == [3, 4]
    assert peer.of("got")[0] == {"got": 3, "home": "here"}
    peer.write("stop")
    peer.wait_done()
    assert peer.log_path.read_text() == "to the log\n"


def test_what_never_comes_is_an_error_that_names_the_log(start: Callable[..., Peer]) -> None:
    peer = start()
    with pytest.raises(AssertionError, match=r"0\.log"):
        peer.wait_done(seconds=0.05)


def test_several_may_get_it_together(start: Callable[..., Peer]) -> None:
    one, two = start(), start()
    for number in range(4):
        (one if number % 2 else two).write(str(number))
    wait_for_all([one, two], range(4))
    with pytest.raises(AssertionError, match="1 never came, for example \\[7\\]"):
        wait_for_all([one, two], {3, 7}, seconds=0.1)
