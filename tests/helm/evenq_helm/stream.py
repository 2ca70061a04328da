"""A producer in a pod that sends numbered messages until it should end, and what became of them.

Both programs run in the pod `producer`, with the SDK of its image and the keys of the user `demo`.
"""

from __future__ import annotations

import json
import subprocess
import threading
from dataclasses import dataclass

from evenq_helm.desk import pod
from evenq_helm.kubernetes import Kubernetes, wait_until

SEND = """
import json, os, sys, time
import evenq
topic, endpoint = sys.argv[1:]
acknowledged, times, refused, number = [], [], 0, 0
stop = f"/tmp/{topic}.stop"
with evenq.Producer(endpoint=endpoint) as producer:
    while not os.path.exists(stop):
        number += 1
        try:
            producer.send(evenq.Message(topic=topic, body=f"message {number}".encode()))
        except evenq.errors.Error:
            refused += 1
            time.sleep(0.02)
        else:
            acknowledged.append(number)
            times.append(time.monotonic())
            if len(acknowledged) % 20 == 0:
                print(json.dumps({"acknowledged": len(acknowledged)}), flush=True)
        time.sleep(0.015)
with open(f"/tmp/{topic}.json", "w") as file:
    json.dump({"acknowledged": acknowledged, "times": times, "refused": refused}, file)
"""
READ = """
import json, sys, time
import evenq
topic, endpoint = sys.argv[1:]
with open(f"/tmp/{topic}.json") as file:
    told = json.load(file)
wanted = {f"message {number}" for number in told["acknowledged"]}
bodies, quiet, end = [], 0, time.monotonic() + 60
options = {"group": f"readers-{topic}", "subscriptions": {topic: "*"}, "endpoint": endpoint, "start_from": "FIRST"}
with evenq.SimpleConsumer(**options) as consumer:
    while time.monotonic() < end and (quiet < 2 or not wanted <= set(bodies)):
        messages = consumer.receive(64, invisible_ms=60_000, wait_ms=1_000)
        quiet = 0 if messages else quiet + 1
        bodies += [message.body.decode() for message in messages]
        for message in messages:
            consumer.ack(message)
gaps = sorted((b - a for a, b in zip(told["times"], told["times"][1:])), reverse=True)
print(json.dumps({
    "acknowledged": len(wanted), "refused": told["refused"], "lost": len(wanted - set(bodies)),
    "repeated": len(bodies) - len(set(bodies)), "gaps_s": [round(gap, 2) for gap in gaps[:4]],
}))
"""


def make_producer(kubernetes: Kubernetes, namespace: str) -> None:
    """The pod that both programs run in."""
    producer = pod("producer")
    producer["metadata"]["namespace"] = namespace
    kubernetes.apply(producer)
    kubernetes.run("kubectl", "-n", namespace, "wait", "--for=condition=Ready", "pod", "producer", "--timeout=60s")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a stream."""

    acknowledged: int
    refused: int
    """Sends that ended with an error, after all tries of the SDK."""
    lost: int
    """Acknowledged and not there."""
    repeated: int
    """There more than once."""
    gaps_s: list[float]
    """The longest times between two acknowledgements, the longest first."""


class Stream:
    """One sender and its topic. A context: at its end the sender has ended."""

    def __init__(self, kubernetes: Kubernetes, namespace: str, topic: str) -> None:
        self._kubernetes, self._namespace, self.topic = kubernetes, namespace, topic
        self._target = (topic, f"evenq.{namespace}.svc.cluster.local:8081")
        self.acknowledged = 0
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Begin to send."""
        self._process = self._kubernetes.start(*self._exec("python", "-c", SEND, *self._target))
        threading.Thread(target=self._follow, args=(self._process,), daemon=True).start()

    def wait_for(self, count: int, *, within_s: float = 60.0) -> None:
        """Until this number of more are acknowledged."""
        goal = self.acknowledged + count
        wait_until(lambda: self.acknowledged >= goal, within_s, f"{goal} acknowledged")

    def end(self) -> Outcome:
        """Stop sending, read everything, compare."""
        assert self._process is not None
        self._kubernetes.run(*self._exec("touch", f"/tmp/{self.topic}.stop"))
        assert self._process.wait(60) == 0
        shown = self._kubernetes.run(*self._exec("python", "-c", READ, *self._target))
        return Outcome(**json.loads(shown.splitlines()[-1]))

    def _exec(self, *command: str) -> tuple[str, ...]:
        return ("kubectl", "-n", self._namespace, "exec", "producer", "--", *command)

    def _follow(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout as output:
            for line in output:
                self.acknowledged = json.loads(line)["acknowledged"]
