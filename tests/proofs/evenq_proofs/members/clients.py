"""Senders and members of the official SDKs as processes, all with the same life whatever their language."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from evenq_proofs.members.judging import Delivery, End
from evenq_proofs.official_sdks import go_peer, java_classpath, java_peer, python_peer
from evenq_proofs.peer import Peer

SDKS: Final = ("go", "java", "python")
START_S: Final = 120.0
CLOSE_S: Final = 120.0
"""Far more than any of them needs on a busy machine."""


class Load(NamedTuple):
    """Topics, groups and rates, the same for all SDKs."""

    endpoints: str
    groups: Mapping[str, str]
    """Consumer group to topic; the first one is ordered."""
    streams: int
    """Message groups of each sender; it has as many streams of normal messages, too."""
    pace_ms: int
    """Between two messages of a stream."""
    work_ms: int
    """Of a listener on each message."""

    @property
    def places(self) -> list[str]:
        """`TOPIC GROUP TOPIC GROUP`."""
        return [word for group, topic in self.groups.items() for word in (topic, group)]


class Commands:
    """What starts the peer of each SDK; builds those that must be built. Raises NotInstalled."""

    def __init__(self, sdks: tuple[str, ...], folder: Path) -> None:
        self._folder = folder
        self._go = str(go_peer()) if "go" in sdks else ""
        self._java = java_classpath() if "java" in sdks else ""

    def start(self, sdk: str, name: str, words: list[str]) -> Peer:
        """A process of it; Java's gets its words later."""
        home = self._folder / name
        home.mkdir(parents=True)
        command = {
            "go": [self._go, *words],
            "java": java_peer(self._java, home),
            "python": [*python_peer(), *words],
        }[sdk]
        environment = {**os.environ, "HOME": str(home), "TMPDIR": str(home)}
        return Peer(command, log_path=self._folder / f"{name}.log", environment=environment)


class Client:
    """One process: a sender or a member."""

    def __init__(self, commands: Commands, load: Load, sdk: str, name: str, *, sends: bool) -> None:
        """Starts it; `wait_ready` waits for its clients."""
        self.sdk, self.name, self._load = sdk, name, load
        fifo, normal = load.groups.values()
        if sends:
            words = ["stream", load.endpoints, name, str(load.streams), str(load.pace_ms), fifo, normal]
        else:
            words = ["member", load.endpoints, str(load.work_ms), *load.places]
        self.peer = commands.start(sdk, name, words)
        self._java_clients = self._java_made(sends=sends) if sdk == "java" else []
        self.ends: list[End] = []
        """Of each group, in the order of `load.groups`."""

    def _java_made(self, *, sends: bool) -> list[str]:
        """The clients of the Java process: one for each stream, or for each group."""
        fifo, normal = self._load.groups.values()
        if not sends:
            for group, topic in self._load.groups.items():
                self._do(
                    "push", group, endpoint=self._load.endpoints, group=group, topic=topic, work_ms=self._load.work_ms
                )
            return list(self._load.groups)
        streams = {
            f"{self.name}-{kind}-{number}": topic
            for topic, kind in ((fifo, "fifo"), (normal, "normal"))
            for number in range(self._load.streams)
        }
        for stream, topic in streams.items():
            self._do("producer", stream, endpoint=self._load.endpoints, topic=topic)
        for stream, topic in streams.items():
            self._do("stream", stream, topic=topic, stream=stream, ordered=topic == fifo, pace_ms=self._load.pace_ms)
        return list(streams)

    def _do(self, action: str, client: str, **fields: object) -> None:
        self.peer.write(json.dumps({"do": action, "client": client, **fields}))

    def wait_ready(self) -> None:
        """Until it works. Raises AssertionError, with its log, if it cannot."""
        if self.sdk != "java":
            self.peer.wait(lambda said: any("ready" in line for line in said), seconds=START_S)
            return
        actions = ("push", "stream")
        self.peer.wait(
            lambda said: (
                sum(line.get("done") in actions for line in said) == len(self._java_clients)
                or any("error" in line for line in said)
            ),
            seconds=START_S,
        )
        wrong = self.peer.of("error")
        assert not wrong, f"{self.name}: {wrong[0]}"

    def stop_sending(self) -> None:
        """Ends a sender in order: each of its streams ends with a message that was answered, or refused."""
        if self.sdk == "java":
            for stream in self._java_clients:
                self._do("rest", stream)
            count = len(self._java_clients)
            self.peer.wait(lambda said: sum(line.get("done") == "rest" for line in said) == count, seconds=CLOSE_S)
        else:
            self.peer.write("stop")
            self.peer.wait_done(seconds=CLOSE_S)
        self.peer.end()

    def leave(self) -> int:
        """Closes a member's consumers, and its process then; returns the ms that it took."""
        begun = now_us()
        if self.sdk == "java":
            for group in self._java_clients:
                self._do("close", group)
        else:
            self.peer.write("stop")
        groups = list(self._load.groups)
        self.peer.wait(lambda said: sum("closed" in line for line in said) == len(groups), seconds=CLOSE_S)
        took_ms = (now_us() - begun) // 1_000
        at = {line["closed"]: int(line["at_us"]) for line in self.peer.of("closed")}
        self.ends = [End(at[group], self.name) for group in groups]
        if self.sdk != "java":
            self.peer.wait_done(seconds=CLOSE_S)
        self.peer.end()
        return took_ms

    def kill(self) -> None:
        """SIGKILL, whatever it does."""
        end = End(now_us(), self.name)
        self.peer.end()
        self.ends = [end for _ in self._load.groups]

    def end(self, folder: Path) -> None:
        """Kills it, if it lives, and leaves its lines in a file."""
        self.peer.end()
        lines = "".join(json.dumps(line) + "\n" for line in self.peer.said)
        (folder / f"{self.name}.jsonl").write_text(lines, encoding="utf-8")

    def sent(self) -> dict[str, int]:
        """Bodies of acknowledged messages, and when."""
        return {f"{line['stream']}:{line['sent']}": int(line["at_us"]) for line in self.peer.of("sent")}

    def refusals(self) -> list[dict[str, Any]]:
        """Sends that ended with an error, after all tries of the SDK."""
        return self.peer.of("refused")

    def deliveries(self, group: str) -> list[Delivery]:
        """What its listener of the group got."""
        lines = self.peer.of("got")
        return [Delivery(int(one["at_us"]), self.name, str(one["body"])) for one in lines if one["client"] == group]


def now_us() -> int:
    """The machine's clock, which all peers share."""
    return time.time_ns() // 1_000
