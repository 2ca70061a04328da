"""Alerts and runbooks come in pairs, and alerts and dashboards ask only for metrics that the servers have."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from evenq_proofs.programs_by_path import load_program

ROOT = Path(__file__).resolve().parents[2]
ALERTS = ROOT / "helm" / "evenq" / "alerts"
RUNBOOKS = ROOT / "docs" / "operating" / "runbooks"
DASHBOARDS = ROOT / "helm" / "evenq" / "dashboards"
NAME = re.compile(r"\b(?:evenq|rocketmq|process)_[a-z0-9_]+")
CONSTANT = {"cluster", "node_type", "node_id", "instance", "job"}
"""Of every series: our own constant labels, and those that Prometheus gives."""
SECTIONS = ["Meaning", "Impact", "Diagnosis", "Mitigation"]


@pytest.fixture(scope="module")
def reference() -> Any:
    return load_program(ROOT / "tools" / "gen_reference.py")


def rules() -> dict[str, list[dict[str, Any]]]:
    """Name of the file -> its rules."""
    return {
        path.stem: [rule for group in yaml.safe_load(path.read_text())["groups"] for rule in group["rules"]]
        for path in sorted(ALERTS.glob("*.yaml"))
    }


def test_every_alert_has_its_runbook_and_every_runbook_its_alert():
    assert sorted(rules()) == sorted(path.stem for path in RUNBOOKS.glob("*.md"))
    assert len(rules()) >= 6


def test_every_file_holds_one_alert_of_its_own_name_with_all_it_needs():
    for name, (rule, *more) in rules().items():
        assert not more
        assert rule["alert"] == name
        assert rule["labels"]["severity"] in {"critical", "warning"}
        assert rule["annotations"]["runbook"] == f"docs/operating/runbooks/{name}.md"
        assert rule["annotations"]["summary"]
        assert re.fullmatch(r"\d+m", rule["for"])
        assert rule["expr"].count("(") == rule["expr"].count(")")


def test_every_runbook_tells_meaning_impact_diagnosis_and_mitigation():
    for path in RUNBOOKS.glob("*.md"):
        text = path.read_text()
        assert text.startswith(f"# {path.stem}\n")
        assert re.findall(r"^## (.+)$", text, re.MULTILINE) == SECTIONS, path


def test_alerts_runbooks_and_dashboards_name_only_metrics_that_exist(reference):
    known = reference.metric_names()
    asked = {f"alert {name}": rule["expr"] for name, (rule,) in rules().items()}
    for path in sorted(DASHBOARDS.glob("*.json")):
        for panel in json.loads(path.read_text())["panels"]:
            asked |= {f"{path.stem}: {panel['title']} {t['refId']}": t["expr"] for t in panel["targets"]}
    for path in (*sorted(RUNBOOKS.glob("*.md")), RUNBOOKS.parent / "kubernetes.md"):
        asked[path.name] = path.read_text().replace("rocketmq_rpc_latency`", "`")
    unknown = {where: missing for where, text in asked.items() if (missing := set(NAME.findall(text)) - known)}
    assert unknown == {}


def test_alerts_group_and_choose_by_labels_that_the_metric_has(reference):
    labels = {metric.name: set(metric.labels) for listed in reference.metric_lists().values() for metric in listed}
    for name, (rule,) in rules().items():
        have = set().union(*(labels.get(metric, set()) for metric in NAME.findall(rule["expr"]))) | CONSTANT
        chosen = re.findall(r"by \(([^)]*)\)", rule["expr"]) + re.findall(r"(\w+)=~?\"", rule["expr"])
        expected = {label.strip() for part in chosen for label in part.split(",")}
        expected |= set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
        assert expected <= have, name
