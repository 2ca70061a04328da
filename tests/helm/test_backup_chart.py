"""Backups by a CronJob, and a release that begins with one."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest
from evenq_helm.chart import environment, find, pods, refusal, render

from evenq.cli.parser import make_parser

BACKUP = ("--set", "backup.enabled=true,backup.existingClaim=backups")
RESTORE = ("--set", "restore.existingClaim=backups")
COPIES = ("--set", "broker.groups=2,broker.replicas=3")


def claims(pod: dict[str, Any]) -> dict[str, str]:
    """Path in the container -> claim."""
    (container,) = pod["containers"]
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    mounted = {mount["mountPath"]: volumes[mount["name"]] for mount in container["volumeMounts"]}
    return {path: one["persistentVolumeClaim"]["claimName"] for path, one in mounted.items() if "secret" not in one}


def test_a_cron_job_backs_up_all_brokers_with_an_operators_keys(helm: str) -> None:
    assert "CronJob" not in {d["kind"] for d in render(helm)}
    documents = render(helm, *BACKUP, "--set", "backup.keep=3,backup.maxRate=20M,backup.schedule=5 * * * *")
    spec = find(documents, "CronJob", "evenq-backup")["spec"]
    assert (spec["schedule"], spec["concurrencyPolicy"]) == ("5 * * * *", "Forbid")
    template = spec["jobTemplate"]["spec"]["template"]
    pod = template["spec"]
    (container,) = pod["containers"]
    parsed = make_parser().parse_args(container["command"][1:])
    assert (parsed.to, parsed.keep, parsed.max_rate, parsed.broker) == ("/backup/evenq", 3, 20 << 20, [])
    assert claims(pod) == {"/backup": "backups"}
    assert environment(container)["EVENQ_CREDENTIALS"] == "/etc/evenq/auth/operator.toml"
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    policy = find(documents, "NetworkPolicy", "evenq-commands")["spec"]["podSelector"]
    (expression,) = policy["matchExpressions"]
    assert template["metadata"]["labels"][expression["key"]] in expression["values"]


def test_a_backup_without_a_claim_is_refused(helm: str) -> None:
    assert "backup.enabled needs backup.existingClaim" in refusal(helm, "backup.enabled=true")
    assert "maxRate" in refusal(helm, "backup.maxRate=fast")


@pytest.mark.parametrize("copies", [False, True])
def test_an_installation_begins_with_a_backup_in_the_claims_of_first_copies(helm: str, copies: bool) -> None:
    documents = render(helm, *RESTORE, *(COPIES if copies else ()))
    for group in ("evenq-broker-0", "evenq-broker-1"):
        name = f"data-{group}{'-0' if copies else ''}"
        claim = find(documents, "PersistentVolumeClaim", name)
        broker = find(documents, "StatefulSet", group if copies else "evenq-broker")["spec"]
        (made,) = broker["volumeClaimTemplates"]
        assert claim["spec"] == made["spec"]
        assert claim["metadata"]["labels"] == made["metadata"]["labels"]
        notes = claim["metadata"]["annotations"]
        assert notes["helm.sh/hook"] == "pre-install"
        assert notes["helm.sh/hook-delete-policy"] == "hook-failed", "the default would delete a claim that is there"
        job = find(documents, "Job", f"{group}-restore")
        assert job["metadata"]["annotations"]["helm.sh/hook"] == "pre-install"
        pod = job["spec"]["template"]["spec"]
        assert claims(pod) == {"/backup": "backups", "/data": name}
        parsed = make_parser().parse_args(pod["containers"][0]["command"][1:])
        (server,) = [one["containers"][0] for one in pods([{"kind": "StatefulSet", "spec": broker}])]
        assert (parsed.broker, str(parsed.data)) == (group, environment(server)["EVENQ_BROKER_STORE__PATH"])
    assert len([d for d in documents if d["kind"] == "PersistentVolumeClaim"]) == 2, "other copies begin empty"


def test_an_upgrade_restores_nothing(helm: str) -> None:
    documents = render(helm, *RESTORE, "--is-upgrade")
    assert not [d for d in documents if "restore" in d["metadata"]["name"] or d["kind"] == "PersistentVolumeClaim"]


def test_copies_that_join_one_are_not_restored(helm: str) -> None:
    segment = ("--set-string", "broker.settings.EVENQ_BROKER_STORE__SEGMENT_BYTES=536870912")
    with pytest.raises(subprocess.CalledProcessError) as refused:
        render(helm, *RESTORE, *COPIES, "--set", "broker.replication.fromOneCopy=true", *segment)
    assert "a restored broker is a new one" in refused.value.stderr
