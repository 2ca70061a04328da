"""What brokers count, by their metrics pages."""

from __future__ import annotations

import urllib.request
from collections import Counter

from evenq.testing.local_cluster import LocalCluster


def series(cluster: LocalCluster, name: str, **labels: str) -> list[tuple[str, float]]:
    """The series of a metric at all brokers, each as its text."""
    wanted = [f'{label}="{text}"' for label, text in labels.items()]
    found = []
    for broker in cluster.brokers:
        with urllib.request.urlopen(f"http://127.0.0.1:{broker.metrics_port}/metrics", timeout=60) as response:
            lines = response.read().decode().splitlines()
        for line in lines:
            if line.startswith(name + "{") and all(label in line for label in wanted):
                text, _, number = line.rpartition(" ")
                found.append((text, float(number)))
    return found


def delivered(cluster: LocalCluster, group: str, topic: str) -> float:
    """Messages that the group took out of the topic."""
    found = series(cluster, "rocketmq_messages_out_total", consumer_group=group, topic=topic)
    return sum(number for _, number in found)


def calls(cluster: LocalCluster) -> Counter[str]:
    """Calls that have ended, by name."""
    found: Counter[str] = Counter()
    for text, number in series(cluster, "rocketmq_rpc_latency_count"):
        found[text.partition('request_code="')[2].partition('"')[0]] += int(number)
    return found
