"""The alert rules, checked and played by Prometheus' own `promtool`: what fires, and what stays silent, in each story.

A story is what Prometheus scraped, and the alerts that must fire by it: exactly these, of all rules. `promtool` is
fetched if the machine has none (`tools/promtool.py`); where that cannot be, the tests are skipped, unless `CI` or
`EVENQ_TEST_ALL` is set: there they fail.
"""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from evenq_proofs.programs_by_path import load_program

ROOT = Path(__file__).resolve().parents[2]
ALERTS = sorted((ROOT / "helm" / "evenq" / "alerts").glob("*.yaml"))
ENDS = 90
"""Minutes of a story; trouble begins at 10 and is looked at when it is over 20 old, or at the end."""
BEGINS, LOOK = 10, 45

Series = dict[str, str]
"""A series of Prometheus -> its values in promtool's notation, one a minute."""


@pytest.fixture(scope="module")
def promtool() -> Path:
    module = load_program(ROOT / "tools" / "promtool.py")
    found = module.promtool()
    if isinstance(found, Path):
        return found
    if os.environ.get("CI") or os.environ.get("EVENQ_TEST_ALL"):
        pytest.fail(f"there is no promtool: {found}")
    pytest.skip(f"there is no promtool: {found}")


# ----------------------------------------------------------------------------------------------------- what is scraped


def always(value: float) -> str:
    return f"{value}x{ENDS}"


def until_trouble(value: float) -> str:
    """It answers, and then it does not."""
    return f"{value}x{BEGINS} _x{ENDS - BEGINS}"


def then(value: float, later: float) -> str:
    return f"{value}x{BEGINS} {later}x{ENDS - BEGINS}"


def counting(per_minute: float) -> str:
    """A counter that grows from the beginning of the trouble on."""
    return f"0x{BEGINS} {per_minute}+{per_minute}x{ENDS - BEGINS}"


def own(cluster: str, kind: str, node: str, **labels: str) -> str:
    """The labels that every series has, and more; sorted as Prometheus shows them."""
    fields = {"cluster": cluster, "node_type": kind, "node_id": node, "instance": f"{cluster}-{node}:5557", "job": "q"}
    return "{" + ",".join(f'{name}="{value}"' for name, value in sorted({**fields, **labels}.items())) + "}"


def server(cluster: str, kind: str, node: str, **metrics: float) -> Series:
    """One server that is well."""
    series = {
        f'up{{instance="{cluster}-{node}:5557",job="q"}}': always(1),
        f"evenq_build_info{own(cluster, kind, node, version='0.1.0', python='3.11')}": always(1),
    }
    return series | {f"{name}{own(cluster, kind, node)}": always(value) for name, value in metrics.items()}


def broker(cluster: str, node: str, *, rebalancer: bool = True) -> Series:
    counts = {
        "evenq_broker_nameservers": 2,
        "evenq_broker_nameservers_answering": 2,
        "evenq_store_disk_used_bytes": 30e9,
        "evenq_store_disk_free_bytes": 70e9,
        "evenq_store_disk_free_min_bytes": 10e9,
        "evenq_store_refuses_messages": 0,
    }
    if rebalancer:
        counts["evenq_broker_rebalancer_answers"] = 1
    labels = own(cluster, "broker", node, consumer_group="billing", topic="orders")
    group = own(cluster, "broker", node, consumer_group="billing")
    return server(cluster, "broker", node, **counts) | {
        f"rocketmq_consumer_lag_messages{labels}": always(0),
        f"rocketmq_consumer_connections{group}": always(2),
        f"rocketmq_messages_out_total{labels}": f"0+600x{ENDS}",
        f"evenq_broker_given_back_total{labels}": f"0+1x{ENDS}",
        f"evenq_broker_timed_out_total{labels}": always(0),
        f"rocketmq_send_to_dlq_messages_total{labels}": always(0),
    }


def copies(cluster: str, node: str, *, count: int = 3) -> Series:
    """The pages of a broker group's copies: the first leads, all are in sync."""
    series: Series = {}
    for number in range(count):
        result = own(cluster, "broker", node).replace(f"{cluster}-{node}:", f"{cluster}-{node}-{number}:")
        labels = result.removesuffix("}")
        series |= {
            f"evenq_broker_replicas{result}": always(count),
            f"evenq_broker_replicas_in_sync{result}": always(count),
            f"evenq_broker_replicas_in_sync_min{result}": always(2),
            f"evenq_broker_replica_epoch{result}": always(7),
            f"evenq_broker_replica_record_reachable{result}": always(1),
            f'evenq_broker_replica_role{labels},role="ready"}}': always(int(number == 0)),
            f'evenq_broker_replica_role{labels},role="draining"}}': always(0),
            f'evenq_broker_replica_role{labels},role="fetching"}}': always(int(number > 0)),
        }
        if number:
            series[f'evenq_broker_replica_lag_seconds{{broker_id="{number}",{led_by(cluster, node)}'] = always(0)
    return series


def led_by(cluster: str, node: str) -> str:
    """The labels of what the first copy says, without the first brace."""
    return own(cluster, "broker", node).replace(f"{cluster}-{node}:", f"{cluster}-{node}-0:").removeprefix("{")


def cluster(name: str = "c1", *, brokers: int = 2) -> Series:
    """Brokers, two nameservers, two rebalancers of which one leads, and a group that works."""
    series: Series = {}
    for node in "abcdef"[:brokers]:
        series |= broker(name, node)
    for node in ("n1", "n2"):
        series |= server(name, "nameserver", node, evenq_nameserver_brokers=brokers)
    for node, leads in (("r1", 1), ("r2", 0)):
        counts = {"evenq_rebalancer_leads": leads, "evenq_rebalance_brokers": brokers * leads}
        series |= server(name, "rebalancer", node, **counts)
    pair = own(name, "rebalancer", "r1", consumer_group="billing", topic="orders")
    return series | {f"evenq_unowned_queues{pair}": always(0), f"evenq_rebalance_moves_total{pair}": f"0+1x{ENDS}"}


def silent(series: Series, *, gone: bool = False, **only: str) -> Series:
    """The servers with these labels do not answer any more. `gone`: Prometheus does not ask them, either."""
    wanted = [f'{name}="{value}"' for name, value in only.items()]
    stopped = {one for one in series if all(label in one for label in wanted) and "node_id" in one}
    addresses = {one.partition('instance="')[2].partition('"')[0] for one in stopped}
    found = dict(series)
    for one in found:
        if one in stopped:
            found[one] = f"{found[one].partition('x')[0].partition('+')[0]}x{BEGINS} _x{ENDS - BEGINS}"
        elif one.startswith("up{") and one.partition('instance="')[2].partition('"')[0] in addresses:
            found[one] = until_trouble(1) if gone else then(1, 0)
    return found


def changed(series: Series, name: str, values: str, **only: str) -> Series:
    """Other values for all series of this name with these labels; at least one."""
    wanted = [f'{label}="{value}"' for label, value in only.items()]
    result = [one for one in series if one.startswith(name + "{") and all(label in one for label in wanted)]
    assert result, name
    return series | dict.fromkeys(result, values)


# ----------------------------------------------------------------------------------------------------- the stories


@dataclass(frozen=True, slots=True)
class Story:
    scraped: Series
    fires: list[dict[str, str]] = field(default_factory=list)
    """Labels of the alerts, without severity."""
    at: int = LOOK


def alert(name: str, **labels: str) -> dict[str, str]:
    return {"alertname": name, **labels}


def not_scraped(kind: str, *nodes: str, of: str = "c1") -> list[dict[str, str]]:
    return [
        alert("ServerNotScraped", cluster=of, node_type=kind, job="q", instance=f"{of}-{node}:5557") for node in nodes
    ]


C1 = cluster()
BOTH = C1 | cluster("c2", brokers=3)
ALL = {"broker": ("a", "b"), "nameserver": ("n1", "n2"), "rebalancer": ("r1", "r2")}
BILLING = {"consumer_group": "billing", "topic": "orders"}
A = own("c1", "broker", "a", **BILLING)
TABLE = own("c1", "broker", "a", consumer_group="shop%evenq-table-orders", topic="orders")
R1 = own("c1", "rebalancer", "r1", **BILLING)
MISSING = {f"evenq_broker_missing_peers{own('c1', 'broker', 'a', missing='b')}": then(0, 1)}
NO_REBALANCER = {one: values for one, values in C1.items() if "rebalance" not in one}
GROUP = C1 | copies("c1", "a")
TWO_GROUPS = GROUP | copies("c1", "b")
LED = {"instance": "c1-a-0:5557"}
NODE_A = {"cluster": "c1", "node_id": "a"}
DECAYS = {**NODE_A, "instance": "c1-a-1:5557"}


def repairs(*, repaired: str, failed: str) -> Series:
    """What a copy of group a counts of its disk."""
    labels = own("c1", "broker", "a", instance=DECAYS["instance"])
    return {
        f"evenq_broker_replica_records_repaired_total{labels}": repaired,
        f"evenq_broker_replica_repairs_failed_total{labels}": failed,
    }


ENDED = {"evenq_unowned_queues": 'consumer_group="billing"'}

STORIES = {
    "a cluster that is well": Story(C1),
    "two clusters that are well, of different size": Story(BOTH),
    "a cluster without a rebalancer": Story(NO_REBALANCER),
    # --- all down
    "everything down": Story(
        silent(C1),
        [
            alert("ClusterDown", cluster="c1"),
            *(one for kind, nodes in ALL.items() for one in not_scraped(kind, *nodes)),
        ],
    ),
    "everything down, and no target left": Story(silent(C1, gone=True), [alert("ClusterDown", cluster="c1")]),
    "everything down for longer than an hour": Story(
        silent(C1, gone=True), [alert("ClusterDown", cluster="c1")], at=85
    ),
    "nothing was ever scraped": Story(
        {'up{instance="other:1",job="other"}': always(1)}, [alert("ClusterDown", node_type="broker")]
    ),
    "one of two clusters down": Story(silent(BOTH, gone=True, cluster="c2"), [alert("ClusterDown", cluster="c2")]),
    # --- one down
    "one broker down": Story(
        silent(C1, node_id="b") | MISSING,
        [alert("BrokerDown", cluster="c1", missing="b"), *not_scraped("broker", "b")],
    ),
    "one broker scaled in undrained, its target gone": Story(
        silent(C1, gone=True, node_id="b") | MISSING, [alert("BrokerDown", cluster="c1", missing="b")], at=85
    ),
    "one broker drained, read empty and taken away": Story(
        changed(
            changed(silent(C1, gone=True, node_id="b"), "evenq_nameserver_brokers", then(2, 1)),
            "evenq_rebalance_brokers",
            then(2, 1),
            node_id="r1",
        )
    ),
    "one broker whose page does not answer": Story(silent(C1, node_id="b"), not_scraped("broker", "b")),
    "one nameserver down": Story(
        changed(silent(C1, node_id="n2"), "evenq_broker_nameservers_answering", then(2, 1)),
        not_scraped("nameserver", "n2"),
    ),
    "no nameserver": Story(
        changed(
            silent(BOTH, gone=True, cluster="c1", node_type="nameserver"),
            "evenq_broker_nameservers_answering",
            then(2, 0),
            cluster="c1",
        ),
        [alert("NoNameserver", cluster="c1")],
    ),
    "a rebalancer that does not lead is down": Story(silent(C1, node_id="r2"), not_scraped("rebalancer", "r2")),
    "the only rebalancer is gone": Story(
        changed(
            silent(BOTH, gone=True, cluster="c1", node_type="rebalancer"),
            "evenq_broker_rebalancer_answers",
            then(1, 0),
            cluster="c1",
        ),
        [alert("NobodyLeads", cluster="c1")],
    ),
    "two lead": Story(
        changed(BOTH, "evenq_rebalancer_leads", then(0, 1), cluster="c1", node_id="r2"),
        [alert("NobodyLeads", cluster="c1")],
    ),
    "a broker that the rebalancer does not hear": Story(
        changed(BOTH, "evenq_rebalance_brokers", then(2, 1), cluster="c1", node_id="r1"),
        [alert("RebalancerBehind", cluster="c1")],
    ),
    "nameservers of one cluster count differently": Story(
        changed(BOTH, "evenq_nameserver_brokers", then(2, 1), cluster="c1", node_id="n2"),
        [alert("NameserversDisagree", cluster="c1")],
    ),
    # --- groups
    "a batch job that ended, all read": Story(
        {
            one: until_trouble(0) if one.startswith("evenq_unowned_queues") else values
            for one, values in changed(C1, "rocketmq_consumer_connections", then(2, 0)).items()
        }
    ),
    "a group that nobody reads for, with something to read": Story(
        changed(
            changed(C1, "rocketmq_consumer_connections", then(2, 0)),
            "rocketmq_consumer_lag_messages",
            then(0, 7),
            node_id="a",
        ),
        [alert("GroupAbandoned", cluster="c1", consumer_group="billing")],
    ),
    "the same group, well in one cluster and abandoned in the other": Story(
        changed(
            changed(BOTH, "rocketmq_consumer_connections", then(2, 0), cluster="c2"),
            "rocketmq_consumer_lag_messages",
            then(0, 7),
            cluster="c2",
        ),
        [alert("GroupAbandoned", cluster="c2", consumer_group="billing")],
    ),
    "queues that no member reads": Story(
        changed(C1, "evenq_unowned_queues", then(0, 3)), [alert("UnownedQueues", cluster="c1", **BILLING)]
    ),
    "a group that falls behind": Story(
        changed(C1, "rocketmq_consumer_lag_messages", f"0x{BEGINS} 0+100x{ENDS - BEGINS}"),
        [alert("ConsumerLagGrowing", cluster="c1", **BILLING)],
    ),
    "a lag that is worked off": Story(
        changed(C1, "rocketmq_consumer_lag_messages", f"0x{BEGINS} 90000-500x{ENDS - BEGINS}")
    ),
    "a table whose exporter is away, without members as always": Story(
        C1
        | {
            f"rocketmq_consumer_lag_messages{TABLE}": f"0x{BEGINS} 0+100x{ENDS - BEGINS}",
            f"rocketmq_consumer_lag_latency{TABLE}": then(0, 8_000_000),
        },
        [alert("TableBehind", cluster="c1", topic="orders")],
    ),
    "a table whose exporter closes a file in each window": Story(
        C1
        | {
            f"rocketmq_consumer_lag_messages{TABLE}": f"0+100x{ENDS}",
            f"rocketmq_consumer_lag_latency{TABLE}": always(900_000),
        },
    ),
    "a table that misses what retention deleted": Story(
        C1 | {f"evenq_table_deleted_messages_total{own('c1', 'broker', 'a', topic='orders')}": counting(10)},
        [alert("TableIncomplete", cluster="c1", topic="orders")],
    ),
    "dead letters": Story(
        changed(C1, "rocketmq_send_to_dlq_messages_total", counting(1), node_id="a"),
        [alert("DeadLetters", cluster="c1", **BILLING)],
    ),
    "a group that gives every message back": Story(
        changed(C1, "evenq_broker_given_back_total", counting(600)),
        [alert("GroupFailing", cluster="c1", consumer_group="billing")],
    ),
    "a group that finishes nothing in time": Story(
        changed(C1, "evenq_broker_timed_out_total", counting(500)),
        [alert("GroupFailing", cluster="c1", consumer_group="billing")],
    ),
    "a strategy that fails": Story(
        C1 | {f"evenq_rebalance_failing{R1}": f"_x{BEGINS} 1x{ENDS - BEGINS}"},
        [alert("RebalanceRefused", cluster="c1", **BILLING)],
    ),
    "queues that never rest": Story(
        changed(C1, "evenq_rebalance_moves_total", counting(50)), [alert("RebalanceStorm", cluster="c1", **BILLING)]
    ),
    # --- copies
    "broker groups of three that are well": Story(TWO_GROUPS),
    "a copy away": Story(
        changed(TWO_GROUPS, "evenq_broker_replicas_in_sync", then(3, 2), **LED), [alert("CopiesMissing", **NODE_A)]
    ),
    "a follower that sees others away, and a leader that does not": Story(
        changed(TWO_GROUPS, "evenq_broker_replicas_in_sync", then(3, 1), instance="c1-a-1:5557")
    ),
    "a copy restarted for an upgrade": Story(
        changed(TWO_GROUPS, "evenq_broker_replicas_in_sync", f"3x{LOOK - 4} 2x3 3x{ENDS - LOOK}", **LED)
    ),
    "too few copies": Story(
        changed(TWO_GROUPS, "evenq_broker_replicas_in_sync", then(3, 1), **LED),
        [alert("CopiesMissing", **NODE_A), alert("WritesStopped", **NODE_A)],
    ),
    "nobody leads a group, the others do": Story(
        changed(TWO_GROUPS, "evenq_broker_replica_role", then(1, 0), role="ready", **LED),
        [alert("GroupWithoutLeader", **NODE_A)],
    ),
    "the leader's page is gone, and nobody leads": Story(
        {one: until_trouble(float(values[0])) if LED["instance"] in one else values for one, values in GROUP.items()},
        [alert("GroupWithoutLeader", **NODE_A)],
    ),
    "copies that cannot read the group record": Story(
        changed(TWO_GROUPS, "evenq_broker_replica_record_reachable", then(1, 0), node_id="a"),
        [alert("GroupRecordAway", **NODE_A)],
    ),
    "another copy leads": Story(
        changed(
            changed(TWO_GROUPS, "evenq_broker_replica_role", then(1, 0), role="ready", **LED),
            "evenq_broker_replica_role",
            then(0, 1),
            role="ready",
            instance="c1-a-1:5557",
        )
    ),
    "a leader that hands over": Story(
        changed(
            changed(TWO_GROUPS, "evenq_broker_replica_role", then(1, 0), role="ready", **LED),
            "evenq_broker_replica_role",
            then(0, 1),
            role="draining",
            **LED,
        )
    ),
    "a copy that does not catch up": Story(
        changed(
            changed(TWO_GROUPS, "evenq_broker_replicas_in_sync", then(3, 2), **LED),
            "evenq_broker_replica_lag_seconds",
            f"0x{BEGINS} 60+60x{ENDS - BEGINS}",
            broker_id="2",
            **LED,
        ),
        [alert("CopiesMissing", **NODE_A), alert("CopyBehind", broker_id="2", **NODE_A)],
    ),
    "a copy that an operator let lead": Story(
        C1
        | {
            f"evenq_broker_unclean_elections{own('c1', 'broker', 'a')}": f"1x{ENDS}",
            f"evenq_broker_unclean_election_timestamp_seconds{own('c1', 'broker', 'a')}": f"60x{ENDS}",
        },
        [alert("UncleanElection", cluster="c1", node_id="a")],
    ),
    "a copy that an operator let lead long ago": Story(
        C1
        | {
            f"evenq_broker_unclean_elections{own('c1', 'broker', 'a')}": f"1x{ENDS}",
            f"evenq_broker_unclean_election_timestamp_seconds{own('c1', 'broker', 'a')}": f"-90000x{ENDS}",
        },
        [],
    ),
    "elections without end": Story(
        changed(TWO_GROUPS, "evenq_broker_replica_epoch", f"7x{BEGINS} 8+1x{ENDS - BEGINS}", node_id="a"),
        [alert("LeaderChanges", **NODE_A)],
    ),
    "an upgrade, three elections": Story(
        changed(TWO_GROUPS, "evenq_broker_replica_epoch", f"7x{LOOK - 10} 8x2 9x2 10x{ENDS - LOOK + 6}", node_id="a")
    ),
    "a copy that comes back with an old epoch": Story(
        changed(TWO_GROUPS, "evenq_broker_replica_epoch", f"7x{BEGINS} 0x25 7x{ENDS}", instance="c1-a-2:5557")
    ),
    "a disk that returned damaged records, which another copy replaced": Story(
        TWO_GROUPS | repairs(repaired=counting(1), failed=f"0x{ENDS}"), [alert("DiskDecays", **DECAYS)]
    ),
    "a disk that returned damaged records, which no copy could replace yet": Story(
        TWO_GROUPS | repairs(repaired=f"7x{ENDS}", failed=f"0x{BEGINS} 1x{ENDS - BEGINS}"),
        [alert("DiskDecays", **DECAYS)],
    ),
    "repairs of long ago": Story(TWO_GROUPS | repairs(repaired=f"7x{ENDS}", failed=f"2x{ENDS}")),
    # --- servers
    "internal errors": Story(
        C1
        | {
            f"evenq_rpc_errors_total{own('c1', 'broker', 'a', request_code='Pull', response_code='50001')}": counting(6)
        },
        [alert("InternalErrors", cluster="c1", node_type="broker", node_id="a", request_code="Pull")],
    ),
    "stored bytes that are damaged": Story(
        C1 | {f"evenq_store_damaged_reads_total{own('c1', 'broker', 'a')}": counting(1)},
        [alert("StoreDamaged", cluster="c1", node_id="a")],
    ),
    "sends refused by too many writes": Story(
        C1
        | {
            f"evenq_rpc_errors_total{own('c1', 'broker', 'a', request_code=call, response_code='42900')}": counting(6)
            for call in ("SendMessage", "Publish")
        },
        [alert("SendsRefused", cluster="c1", node_id="a")],
    ),
    "a disk that fills": Story(
        changed(C1, "evenq_store_disk_free_bytes", then(70e9, 12e9), node_id="b"),
        [alert("DiskFilling", cluster="c1", node_type="broker", node_id="b", instance="c1-b:5557", job="q")],
    ),
    "a full disk, and nobody sends": Story(
        changed(
            changed(C1, "evenq_store_disk_free_bytes", then(70e9, 9e9), node_id="b"),
            "evenq_store_refuses_messages",
            then(0, 1),
            node_id="b",
        ),
        [
            alert("DiskFilling", cluster="c1", node_type="broker", node_id="b", instance="c1-b:5557", job="q"),
            alert("SendsRefused", cluster="c1", node_id="b"),
        ],
    ),
}


def severities() -> dict[str, str]:
    rules = [rule for path in ALERTS for group in yaml.safe_load(path.read_text())["groups"] for rule in group["rules"]]
    return {rule["alert"]: rule["labels"]["severity"] for rule in rules}


def as_test(story: Story, severity: dict[str, str]) -> dict[str, Any]:
    """One test of promtool: the set of firing alerts is exactly what the story says."""

    def sample(labels: dict[str, str]) -> str:
        fields = {**labels, "alertstate": "firing", "severity": severity[labels["alertname"]]}
        return "ALERTS{" + ",".join(f'{name}="{value}"' for name, value in sorted(fields.items())) + "}"

    return {
        "interval": "1m",
        "input_series": [{"series": one, "values": values} for one, values in story.scraped.items()],
        "promql_expr_test": [
            {
                "expr": 'ALERTS{alertstate="firing"}',
                "eval_time": f"{story.at}m",
                "exp_samples": [{"labels": sample(labels), "value": 1} for labels in story.fires],
            }
        ],
    }


def test_the_rules_are_rules(promtool: Path) -> None:
    command = [str(promtool), "check", "rules", "--lint-fatal", *map(str, ALERTS)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("SUCCESS: 1 rules found") == len(ALERTS)


@pytest.mark.parametrize("name", STORIES)
def test_exactly_the_right_alerts_fire(promtool: Path, tmp_path: Path, name: str) -> None:
    result = {
        "rule_files": list(map(str, ALERTS)),
        "evaluation_interval": "1m",
        "tests": [as_test(STORIES[name], severities())],
    }
    path = tmp_path / "story.yaml"
    path.write_text(yaml.safe_dump(result))
    command = [str(promtool), "test", "rules", str(path)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_fires_in_a_story_and_tells_its_cluster() -> None:
    fired = {labels["alertname"] for story in STORIES.values() for labels in story.fires}
    assert fired == set(severities())
    without = [one for story in STORIES.values() for one in story.fires if "cluster" not in one]
    assert {one["alertname"] for one in without} == {"ClusterDown"}, "only where no cluster was ever seen"
