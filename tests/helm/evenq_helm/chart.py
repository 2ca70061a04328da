"""The chart as helm renders it, without a cluster."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import yaml

CHART = Path(__file__).resolve().parents[3] / "helm" / "evenq"


def render(helm: str, *arguments: str, release: str = "evenq") -> list[dict[str, Any]]:
    """All objects of a release."""
    command = [helm, "template", release, str(CHART), "--kube-version", "1.34.0", *arguments]
    output = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    return [document for document in yaml.safe_load_all(output) if document]


def refusal(helm: str, *bad: str, flag: str = "--set", version: str = "1.34.0") -> str:
    """What helm says about values that must be refused."""
    sets = [part for value in bad for part in (flag, value)]
    command = [helm, "template", "evenq", str(CHART), "--kube-version", version, *sets]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert refused.returncode != 0, f"{bad} was taken"
    return refused.stderr


def find(documents: list[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    return next(d for d in documents if d["kind"] == kind and d["metadata"]["name"] == name)


def standing(documents: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without hooks, which are there only while helm runs them."""
    return [d for d in documents if "helm.sh/hook" not in (d["metadata"].get("annotations") or {})]


def pods(documents: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Specifications of the pods of all services."""
    return [d["spec"]["template"]["spec"] for d in documents if d["kind"] in {"StatefulSet", "Deployment"}]


def environment(container: dict[str, Any]) -> dict[str, Any]:
    """Variable -> value; None where it comes from elsewhere."""
    return {e["name"]: e.get("value") for e in container["env"]}
