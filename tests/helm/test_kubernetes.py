"""The chart on a real one-node Kubernetes. One release is installed as a stranger would, with its defaults and two rebalancers, and
used from inside through all that happens to a release: its own test, a scale-in, three minutes of probes, pods deleted under
load, a rolling upgrade under load, its end. Another one, `examples/single.yaml`, runs on a volume that really has 1 GiB.

Tests are in the order of that life. Producer and members run in pods from the `demo` image and sign with keys that the chart made;
their histories are fetched and judged by the checker. Short form: EVENQ_TEST_FLIGHTS=6000 (default); the full year: `make kubernetes FLIGHTS=336776`.
EVENQ_TEST_KEEP=1 leaves the cluster up, for the next run.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from evenq_helm.console import ConsoleBrowser
from evenq_helm.desk import MEMBERS, Desk, explain, make_pods, sizes
from evenq_helm.kubernetes import CHART, NODE, REGISTRY, TAG, Kubernetes, installed, values, wait_until
from evenq_helm.outside import Outside

from evenq.runtime.clock import SystemClock
from evenq.testing.history import Recorder

FLIGHTS = int(os.environ.get("EVENQ_TEST_FLIGHTS", "6000"))
PROBED_SECONDS = 180
LOAD_SECONDS = 20
ROLLING_SECONDS = 60
SMALL = "/mnt/evenq-small"
SERVERS = "app.kubernetes.io/name=evenq,app.kubernetes.io/component in (broker, nameserver, rebalancer)"
LESS = ("broker.groups=1", "rebalancer.enabled=false")
pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(2_400)]


class Release:
    """The release of this file, and when it was installed."""

    def __init__(self, kubernetes: Kubernetes) -> None:
        self.kubernetes = kubernetes
        self.installed_ms = SystemClock().monotonic_ms()
        self.pods = uids(kubernetes)


@pytest.fixture(scope="module")
def release(kubernetes: Kubernetes) -> Iterator[Release]:
    with installed(kubernetes, "rebalancer.replicas=2"):
        running = Release(kubernetes)
        make_pods(kubernetes)
        yield running


def uids(kubernetes: Kubernetes, namespace: str = "default") -> dict[str, str]:
    """Identity of each pod of the release, by name."""
    pods = kubernetes.listed("pods", namespace, "-l", SERVERS)
    return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in pods}


def restarts(kubernetes: Kubernetes, namespace: str = "default") -> dict[str, int]:
    """Restarts of each pod of the release, by name."""
    pods = kubernetes.listed("pods", namespace, "-l", SERVERS)
    return {pod["metadata"]["name"]: pod["status"]["containerStatuses"][0]["restartCount"] for pod in pods}


def test_helm_test_passes_and_nobody_comes_in_without_keys(release: Release) -> None:
    kubernetes = release.kubernetes
    shown = kubernetes.run("helm", "test", "evenq", "--timeout", "3m", "--logs", timeout=240)
    assert "Succeeded" in shown
    assert "POD LOGS: evenq-test\n" in shown, shown
    table = kubernetes.run(*kubernetes.evenq("cluster", "show"))
    assert "evenq-broker-1.evenq-broker.default.svc.cluster.local:8081" in table, "the first command of the notes"
    assert "…" not in table, table
    cluster: Any = json.loads(kubernetes.run(*kubernetes.evenq("cluster", "show", "--json")))
    assert [row["broker"] for row in cluster["brokers"]] == ["evenq-broker-0", "evenq-broker-1"]
    keyless = ("kubectl", "exec", "evenq-broker-0", "--", "env", "-u", "EVENQ_CREDENTIALS", "evenq", "topic", "list")
    refused = kubernetes.tried(*keyless)
    assert refused.returncode == 4
    assert "not signed" in refused.stderr
    stranger = (
        "sh",
        "-c",
        "EVENQ_SECRET_KEY=somebody-elses evenq topic list --endpoint evenq.default.svc.cluster.local:8081",
    )
    refused = kubernetes.tried("kubectl", "exec", "ada", "--", *stranger)
    assert "the signature is not right" in refused.stderr


@pytest.mark.slow
def test_one_broker_on_a_volume_of_one_gibibyte_takes_messages_and_comes_back_from_its_backup(release: Release) -> None:
    """`examples/single.yaml` beside the other release, on a file system that has no byte more than the volume's size. Then
    its volume is lost, and a new release begins with the backup.
    """
    kubernetes = release.kubernetes
    script = f"mkdir -p {SMALL} && mount -t tmpfs -o size=1g,mode=0777 tmpfs {SMALL}"
    kubernetes.tool("node-exec", "sh", "-c", script)
    try:
        kubernetes.apply(
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "small"}},
            {
                "apiVersion": "v1",
                "kind": "PersistentVolume",
                "metadata": {"name": "small"},
                "spec": {
                    "capacity": {"storage": "1Gi"},
                    "accessModes": ["ReadWriteOnce"],
                    "storageClassName": "limited",
                    "hostPath": {"path": SMALL},
                },
            },
            {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "metadata": {"name": "backups", "namespace": "small"},
                "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
            },
        )
        images = [
            "--set",
            f"image.registry={REGISTRY},image.tag={TAG},backup.enabled=true,backup.existingClaim=backups",
        ]
        install = ["helm", "-n", "small", "install", "evenq", str(CHART), "--wait", *images]
        install += ["-f", str(CHART / "examples" / "single.yaml")]
        kubernetes.run(*install, "--set", "broker.storage.className=limited", timeout=200)
        sent = ("produce", "orders", "--body", "number {n}", "--count", "1000")
        kubernetes.run(*kubernetes.evenq(*sent, namespace="small"))
        read = ("consume", "orders", "--group", "desk", "--from", "first", "--max", "1000", "--idle", "20", "--json")
        got = kubernetes.run(*kubernetes.evenq(*read, namespace="small")).splitlines()
        assert len({json.loads(line)["body"] for line in got if line.startswith("{")}) == 1000
        assert restarts(kubernetes, "small") == {"evenq-broker-0": 0, "evenq-nameserver-0": 0}

        here = ("kubectl", "-n", "small")
        kubernetes.run(*here, "create", "job", "now", "--from=cronjob/evenq-backup")
        kubernetes.run(*here, "wait", "--for=condition=complete", "job/now", "--timeout=60s")
        kubernetes.run("helm", "-n", "small", "uninstall", "evenq", "--wait")
        restore = [*install, "--set", "restore.existingClaim=backups"]
        refused = kubernetes.tried(*restore)
        assert "the claim data-evenq-broker-0 exists already" in refused.stderr
        kubernetes.run(*here, "delete", "pvc", "data-evenq-broker-0", "--timeout=60s")
        kubernetes.run(*restore, timeout=200)
        read = (*read[:3], "again", *read[4:])
        got = kubernetes.run(*kubernetes.evenq(*read, namespace="small")).splitlines()
        assert len({json.loads(line)["body"] for line in got if line.startswith("{")}) == 1000
    finally:
        kubernetes.run("helm", "-n", "small", "uninstall", "evenq", "--wait", check=False)
        kubernetes.run("kubectl", "delete", "namespace", "small", "--timeout=60s", check=False)
        kubernetes.run("kubectl", "delete", "pv", "small", "--timeout=60s", check=False)
        kubernetes.tool("node-exec", "sh", "-c", f"umount {SMALL} || umount -l {SMALL}")


def test_fewer_brokers_are_refused_until_those_that_go_are_read_empty(release: Release) -> None:
    kubernetes = release.kubernetes
    kubernetes.run(*kubernetes.evenq("topic", "create", "letters", "--queues", "2"))
    kubernetes.run(*kubernetes.evenq("produce", "letters", "--body", "number {n}", "--count", "100"))
    wish = ("helm", "upgrade", "evenq", str(CHART), *values("rebalancer.replicas=2", "broker.groups=1"))
    refused = kubernetes.tried(*wish, timeout=240)
    assert refused.returncode != 0
    output = refused.stdout + refused.stderr
    assert "Refused: broker.groups 2 -> 1 would remove evenq-broker-1 before all of their messages are read" in output
    assert "exec evenq-broker-0 -- evenq broker drain evenq-broker-1 --wait 3600" in output
    assert "broker.scaleIn=unchecked" in output
    assert "evenq-broker-1: not yet." in output, "the table of what is left, too"
    assert len(kubernetes.listed("pods", "default", "-l", "app.kubernetes.io/component=broker")) == 2
    kubernetes.run("kubectl", "delete", "job", "evenq-scale-in", "--ignore-not-found")


@pytest.mark.slow
def test_the_leading_rebalancer_is_deleted_while_the_group_grows_and_only_the_newcomers_share_moves(
    release: Release, tmp_path: Path
) -> None:
    kubernetes = release.kubernetes
    desk = Desk(kubernetes, topic="grown", group="grown-desk", strategy="STICKY", queues=6)
    *first, last = MEMBERS
    for name in first:
        desk.consume(name)
    wait_until(lambda: sizes(explain(kubernetes, desk)) == [6, 6], 60, "two members share 12 queues")
    before = explain(kubernetes, desk)
    assert {(row["owner_zone"], row["broker_zone"]) for row in before} == {("north", "north")}

    producer = desk.publish(FLIGHTS, rate=FLIGHTS // LOAD_SECONDS)
    wait_until(lambda: desk.consumed > FLIGHTS // 10, 120, "it flows")
    recorder = Recorder(tmp_path / "test.history.jsonl", clock=SystemClock())
    leader = leading_pod(kubernetes)
    recorder.fault("leader deleted", target=leader)
    kubernetes.run("kubectl", "delete", "pod", leader, "--force", "--grace-period=0", "--wait=false")
    desk.consume(last)
    wait_until(lambda: leading_pod(kubernetes) not in {"", leader}, 30, "another rebalancer leads")
    wait_until(lambda: sizes(explain(kubernetes, desk)) == [4, 4, 4], 60, "the newcomer has its share")
    after = explain(kubernetes, desk)
    newcomer = ({row["owner"] for row in after} - {row["owner"] for row in before}).pop()
    moved = [row for row, old in zip(after, before, strict=True) if row["owner"] != old["owner"]]
    assert len(moved) == 4
    assert {row["owner"] for row in moved} == {newcomer}
    assert min(row["generation"] for row in moved) > max(row["generation"] for row in before)

    output, _ = producer.communicate(timeout=600)
    assert f"acknowledged {FLIGHTS}" in output, output
    wait_until(lambda: desk.lag() == 0, 180, "the group has read everything")
    repeats = desk.close(recorder, tmp_path)
    assert repeats == 0, "nothing died but a rebalancer"
    print(f"\n{FLIGHTS:,} acknowledged, lost 0, repeated 0, {len(moved)} of 12 queues moved around the deleted leader")


def test_a_broker_pod_is_deleted_in_the_middle_and_nothing_is_lost(release: Release, tmp_path: Path) -> None:
    kubernetes = release.kubernetes
    desk = Desk(kubernetes, topic="flights", group="delay-desk", strategy="AVG", queues=4)
    for name in MEMBERS:
        desk.consume(name)
    producer = desk.publish(FLIGHTS, rate=FLIGHTS // LOAD_SECONDS)

    wait_until(lambda: desk.consumed > FLIGHTS // 4, 120, "a quarter is consumed")
    recorder = Recorder(
        tmp_path / "test.history.jsonl", clock=SystemClock()
    )  # pods share this kernel's monotonic clock
    recorder.fault("pod deleted", target="evenq-broker-1")
    kubernetes.run("kubectl", "delete", "pod", "evenq-broker-1", "--wait=false")
    output, _ = producer.communicate(timeout=600)
    assert f"acknowledged {FLIGHTS}" in output, output
    wait_until(lambda: desk.lag() == 0, 180, "the group has read everything")
    repeats = desk.close(recorder, tmp_path)
    print(f"\n{FLIGHTS:,} acknowledged, lost 0, repeated {repeats:,} around the deleted pod")


@pytest.mark.slow
def test_three_minutes_after_the_installation_no_probe_has_killed_anything(release: Release) -> None:
    """The default chart's liveness probes once killed every pod each half minute, after `helm install --wait` was green."""
    left = PROBED_SECONDS + release.installed_ms / 1_000 - SystemClock().monotonic_ms() / 1_000
    time.sleep(max(0.0, left))
    assert set(restarts(release.kubernetes).values()) == {0}
    now = uids(release.kubernetes)
    servers = {"evenq-broker-0", "evenq-nameserver-0", "evenq-nameserver-1"}  # of the others one was deleted on purpose
    assert {name: now.get(name) for name in servers} == {name: release.pods[name] for name in servers}


@pytest.mark.slow
def test_a_release_with_tls_has_no_plain_port_and_its_servers_and_console_reach_each_other(
    release: Release, tmp_path: Path
) -> None:
    """Two of everything, with a certificate of a CA that no other knows, made as docs/operating/kubernetes.md says."""
    kubernetes = release.kubernetes
    pair = certificate(tmp_path, "secure")
    kubernetes.run("kubectl", "create", "namespace", "secure")
    try:
        files = [f"--from-file={file.name}={file}" for file in pair]
        kubernetes.run("kubectl", "-n", "secure", "create", "secret", "generic", "pair", *files)
        wish = values("tls.enabled=true", "tls.existingSecret=pair", "rebalancer.replicas=2", "console.enabled=true")
        kubernetes.run("helm", "-n", "secure", "install", "evenq", str(CHART), "--wait", *wish, timeout=240)

        def all_answer() -> bool:
            shown: Any = json.loads(kubernetes.run(*kubernetes.evenq("cluster", "show", "--json", namespace="secure")))
            return shown["rebalancer_answers"] is True and [row["answers"] for row in shown["brokers"]] == [True, True]

        wait_until(all_answer, 60, "brokers and rebalancer answer")
        assert "Succeeded" in kubernetes.run("helm", "-n", "secure", "test", "evenq", timeout=240)
        pods = kubernetes.listed("pods", "secure", "-l", "app.kubernetes.io/component=broker")
        address = pods[0]["status"]["podIP"]
        for port in (8081, 8443):
            plain = ("evenq", "topic", "list", "--endpoint", f"{address}:{port}")
            refused = kubernetes.tried("kubectl", "exec", "ada", "--", *plain)
            assert refused.returncode != 0, f"plain text came through port {port}"
        kubernetes.run(*kubernetes.evenq("topic", "create", "orders", "--queues", "2", namespace="secure"))
        keys = kubernetes.secret("evenq-user-demo", "secure")
        with (
            kubernetes.forwarded("service/evenq-console", 8080, "secure") as port,
            ConsoleBrowser(f"http://127.0.0.1:{port}") as browser,
        ):
            assert "Access key" in browser.page("/"), "nobody comes in without keys"
            assert not browser.sign_in(keys["access_key"], "somebody-elses")
            assert browser.sign_in(keys["access_key"], keys["secret_key"])
            assert "evenq-broker-1" in browser.page("/")
            assert "orders" in browser.page("/topics")
        assert set(restarts(kubernetes, "secure").values()) == {0}
    finally:
        kubernetes.run("helm", "-n", "secure", "uninstall", "evenq", "--wait", check=False)
        kubernetes.run("kubectl", "delete", "namespace", "secure", "--timeout=60s", check=False)


def certificate(folder: Path, namespace: str) -> list[Path]:
    """ca.crt, tls.crt and tls.key with the names that the page lists."""
    zone = f"{namespace}.svc.cluster.local"
    names = [f"evenq.{zone}", f"*.evenq-broker.{zone}", f"*.evenq-nameserver.{zone}", f"evenq-rebalancer.{zone}"]
    (folder / "names").write_text(
        "extendedKeyUsage=serverAuth,clientAuth\nsubjectAltName=" + ",".join(f"DNS:{name}" for name in names)
    )
    key = ("openssl", "ecparam", "-genkey", "-name", "prime256v1", "-noout", "-out")
    for command in (
        (*key, "ca.key"),
        ("openssl", "req", "-x509", "-new", "-key", "ca.key", "-subj", "/CN=evenq-test", "-days", "2", "-out", "ca.crt"),
        (*key, "tls.key"),
        ("openssl", "req", "-new", "-key", "tls.key", "-subj", "/CN=evenq", "-out", "tls.csr"),
        ("openssl", "x509", "-req", "-in", "tls.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2",
         "-extfile", "names", "-out", "tls.crt"),
    ):  # fmt: skip
        subprocess.run(command, check=True, capture_output=True, cwd=folder, timeout=60)
    return [folder / name for name in ("ca.crt", "tls.crt", "tls.key")]


OFFSETS = """
import glob, json, pyarrow.parquet as pq
paths = sorted(glob.glob("/tables/evenq/orders/**/*.parquet", recursive=True))
rows = [offset for path in paths for offset in pq.ParquetFile(path).read(columns=["queueOffset"])["queueOffset"].to_pylist()]
print(json.dumps(sorted(rows)))
"""


@pytest.mark.slow
def test_declared_tables_are_exported_into_a_claim_that_outlives_the_release(kubernetes: Kubernetes) -> None:
    """The exporter's own user, with its grants; and the next pod continues after the files of the first."""
    kubernetes.run("kubectl", "create", "namespace", "tables")

    def offsets() -> list[int]:
        """Returns the offsets of all rows, as pyarrow in the exporter's pod reads them; empty before there is a pod."""
        read = ("kubectl", "-n", "tables", "exec", "deployment/evenq-tables", "--", "python", "-c", OFFSETS)
        done = kubernetes.tried(*read)
        return list(json.loads(done.stdout)) if done.returncode == 0 else []

    try:
        wish = values(
            *LESS, "nameserver.replicas=1", "tables.enabled=true", "tables.claim.size=1Gi", "tables.closeAfter=5s"
        )
        kubernetes.run("helm", "-n", "tables", "install", "evenq", str(CHART), "--wait", *wish, timeout=240)
        kubernetes.run(*kubernetes.evenq("topic", "create", "orders", "--queues", "1", "--table", namespace="tables"))
        for sent in (1_000, 2_000):
            produce = ("produce", "orders", "--body", "number {n}", "--count", "1000")
            kubernetes.run(*kubernetes.evenq(*produce, namespace="tables"))
            # The pod begins again, after pauses of up to a minute, until the brokers answer it.
            wait_until(lambda count=sent: offsets() == [*range(count)], 180, f"files have {sent} rows, each once")
            pod = ("-l", "app.kubernetes.io/component=tables", "--timeout=90s")
            kubernetes.run("kubectl", "-n", "tables", "delete", "pod", *pod)
        shown = kubernetes.run(*kubernetes.evenq("group", "list", "--json", namespace="tables"))
        assert "evenq-table-orders" in shown
        kubernetes.run("helm", "-n", "tables", "uninstall", "evenq", "--wait", timeout=240)
        assert "persistentvolumeclaim/evenq-tables" in kubernetes.left(namespace="tables")
    finally:
        kubernetes.run("helm", "-n", "tables", "uninstall", "evenq", "--wait", check=False)
        kubernetes.run("kubectl", "delete", "namespace", "tables", "--timeout=60s", check=False)


@pytest.mark.slow
def test_clients_outside_the_cluster_come_in_by_one_address_by_one_for_each_broker_and_by_a_forwarded_port(
    release: Release,
) -> None:
    """On the node, where no pod's address was given out: our command line and the official Python SDK, both signed."""
    kubernetes = release.kubernetes
    namespace = ("-n", "outside")
    wish = ("external.enabled=true", f"external.host={NODE}")
    kubernetes.run("kubectl", "create", "namespace", "outside")
    try:
        ways = values(*wish, "external.ports={30081}")
        kubernetes.run("helm", *namespace, "install", "evenq", str(CHART), "--wait", *ways, timeout=240)
        keys = kubernetes.secret("evenq-user-demo", "outside")
        clients = Outside(kubernetes, keys["access_key"], keys["secret_key"])
        clients.send_and_read("one-address", f"{NODE}:30081")
        assert clients.told("one-address", f"{NODE}:30081") == [f"{NODE}:30081"]

        ways = values(*wish, "external.ports={30091,30092}")
        kubernetes.run("helm", *namespace, "upgrade", "evenq", str(CHART), "--wait", *ways, timeout=240)
        clients.send_and_read("one-for-each", f"{NODE}:30092")
        assert clients.told("one-for-each", f"{NODE}:30092") == [f"{NODE}:30091", f"{NODE}:30092"]

        wrong = Outside(kubernetes, keys["access_key"], "somebody-elses")
        refused = wrong.tried("topic", "list", endpoint=f"{NODE}:30091")
        assert refused.returncode == 4
        assert "the signature is not right" in refused.stderr
        with kubernetes.forwarded("service/evenq", 8081, "outside") as port:
            here = Outside(kubernetes, keys["access_key"], keys["secret_key"], on_the_node=False)
            way = f"127.0.0.1:{port}?one-address"
            here.evenq("topic", "create", "forwarded", "--queues", "2", endpoint=way)
            here.evenq("produce", "forwarded", "--body", "number {n}", "--count", "40", endpoint=way)
            read = (
                "consume",
                "forwarded",
                "--group",
                "here",
                "--from",
                "first",
                "--max",
                "40",
                "--idle",
                "20",
                "--json",
            )
            got = [json.loads(line)["body"] for line in here.evenq(*read, endpoint=way).splitlines() if line[:1] == "{"]
            assert sorted(got) == sorted(f"number {n}" for n in range(1, 41))
        assert set(restarts(kubernetes, "outside").values()) == {0}
    finally:
        kubernetes.run("helm", *namespace, "uninstall", "evenq", "--wait", check=False)
        kubernetes.run("kubectl", "delete", "namespace", "outside", "--timeout=60s", check=False)


def test_a_rolling_upgrade_under_load_loses_nothing(release: Release, tmp_path: Path) -> None:
    """Every pod is replaced while a group of push consumers reads a steady stream and `evenq verify` receives and acknowledges."""
    kubernetes = release.kubernetes
    desk = Desk(kubernetes, topic="rolled", group="rolled-desk", strategy="STICKY", queues=4)
    for name in MEMBERS:
        desk.consume(name)
    producer = desk.publish(FLIGHTS, rate=FLIGHTS // ROLLING_SECONDS)
    endpoint = ("--endpoint", "evenq.default.svc.cluster.local:8081")
    verify = ("evenq", "verify", "--seconds", str(ROLLING_SECONDS), "--kinds", "normal,fifo", "--rate", "50", "--json")
    verifier = kubernetes.start("kubectl", "exec", "producer", "--", *verify, *endpoint)
    wait_until(lambda: desk.consumed > FLIGHTS // 20, 60, "it flows")

    before, clock = uids(kubernetes), SystemClock()
    recorder = Recorder(tmp_path / "test.history.jsonl", clock=clock)
    recorder.fault("upgrade", target="evenq")
    began_ms = clock.monotonic_ms()
    kubernetes.run(
        "helm", "upgrade", "evenq", str(CHART), "--wait", "--timeout", "5m",
        *values("rebalancer.replicas=2", "podAnnotations.round=second"), timeout=330,
    )  # fmt: skip
    took_ms = clock.monotonic_ms() - began_ms
    assert producer.poll() is None, "the upgrade took longer than the load"
    after = uids(kubernetes)
    assert not set(before.values()) & set(after.values()), "every pod is another one"
    assert set(restarts(kubernetes).values()) == {0}

    output, _ = producer.communicate(timeout=600)
    assert f"acknowledged {FLIGHTS}" in output, output
    wait_until(lambda: desk.lag() == 0, 180, "the group has read everything")
    repeats = desk.close(recorder, tmp_path)
    shown, _ = verifier.communicate(timeout=300)
    assert verifier.returncode == 0, shown
    kinds = {row["kind"]: row for row in json.loads(shown)["kinds"]}
    assert {row["lost"] for row in kinds.values()} == {0}
    assert min(row["received"] for row in kinds.values()) > 0
    again = ", ".join(f"{kind} {row['repeated']} of {row['received']:,}" for kind, row in kinds.items())
    print(
        f"\n{FLIGHTS:,} acknowledged in {ROLLING_SECONDS} s, all pods replaced in {took_ms / 1_000:.0f} s, lost 0; repeated: "
        f"push consumers {repeats:,}, simple consumers {again}"
    )


def test_a_broker_that_was_read_empty_may_go(release: Release) -> None:
    kubernetes = release.kubernetes
    for row in json.loads(kubernetes.run(*kubernetes.evenq("topic", "list", "--json"))):
        kubernetes.run(*kubernetes.evenq("topic", "delete", row["topic"], "--yes"))
    wish = values("rebalancer.replicas=2", "broker.groups=1", "broker.scaleIn=drain", "broker.scaleInSeconds=60")
    kubernetes.run("helm", "upgrade", "evenq", str(CHART), "--wait", "--timeout", "5m", *wish, timeout=330)
    wait_until(lambda: "evenq-broker-1" not in uids(kubernetes), 60, "it is gone")
    assert "evenq-scale-in" not in {job["metadata"]["name"] for job in kubernetes.listed("jobs")}


def test_the_end_of_a_release_leaves_what_is_meant_to_stay_and_its_keys_come_back(release: Release) -> None:
    kubernetes = release.kubernetes
    keys = secrets_of(kubernetes)
    kubernetes.run("helm", "uninstall", "evenq", "--wait")

    stays = {"secret/evenq-auth", *(f"persistentvolumeclaim/data-evenq-broker-{n}" for n in range(2))}
    wait_until(lambda: kubernetes.left() == stays, 60, f"only {stays} is left, and not {kubernetes.left()}")
    assert "evenq-rebalancer" not in kubernetes.run("kubectl", "get", "leases", "-o", "name")
    # Volumes of their own: those from before know that evenq-broker-1 was drained, so it would be free to go.
    kubernetes.run("kubectl", "delete", "pvc", "-l", "app.kubernetes.io/instance=evenq", "--timeout=60s")
    wish = values("rebalancer.replicas=2", "rebalancer.topology=false")
    kubernetes.run("helm", "install", "evenq", str(CHART), "--wait", *wish, timeout=240)
    assert secrets_of(kubernetes) == keys

    # A refused upgrade is the newest revision, and it would have no Service, budget, Role ... of rebalancers.
    kubernetes.run(*kubernetes.evenq("topic", "create", "letters", "--queues", "2"))
    kubernetes.run(*kubernetes.evenq("produce", "letters", "--body", "number {n}", "--count", "100"))
    refused = kubernetes.tried("helm", "upgrade", "evenq", str(CHART), *values(*LESS), timeout=240)
    assert "Refused: broker.groups 2 -> 1" in refused.stdout + refused.stderr
    kubernetes.run("helm", "uninstall", "evenq", "--wait", timeout=240)
    wait_until(lambda: kubernetes.left() == stays, 60, f"only {stays} is left, and not {kubernetes.left()}")


def secrets_of(kubernetes: Kubernetes) -> dict[str, str]:
    """User and secret, as the servers' Secret has them."""
    return {key: value for key, value in kubernetes.secret("evenq-auth").items() if key.startswith("secret.")}


def leading_pod(kubernetes: Kubernetes) -> str:
    """Name of the rebalancer pod that has the lease; empty: none has."""
    path = "jsonpath={.spec.holderIdentity}"
    holder = kubernetes.run("kubectl", "get", "lease", "evenq-rebalancer", "-o", path, check=False)
    address = holder.partition(":")[0]
    found = {pod["metadata"]["name"]: pod["status"].get("podIP") for pod in kubernetes.listed("pods")}
    return next((name for name, ip in found.items() if ip == address and address), "")
