"""docs/guides/outside.md: its Python runs through a forwarded port, its values render, its broker's line is one."""

from __future__ import annotations

import shlex
from contextlib import closing
from pathlib import Path

import yaml
from evenq_broker.core.cluster.listeners import parse_listeners
from evenq_broker.settings import BrokerSettings
from evenq_proofs.forward import Forward
from evenq_proofs.outside import outside

import evenq
from evenq.serving.program.settings import load

PAGE = "docs/guides/outside.md"
CHART = Path(__file__).resolve().parents[2] / "helm" / "evenq"


def test_the_python_of_the_page_runs_through_a_forwarded_port(blocks, start, tmp_path):
    (program,) = blocks(PAGE, "python")
    with outside(tmp_path, each=True) as way, closing(Forward(way.cluster.brokers[1].port)) as forward:
        with evenq.Admin(endpoint=way.endpoint) as admin:
            admin.create_topic("orders", queues=1)
        process = start(program.at(f"127.0.0.1:{forward.port}"))
        output, _ = process.communicate("\n", timeout=60)
        assert process.returncode == 0, output


def test_the_brokers_line_is_one(blocks):
    (line,) = [c for block in blocks(PAGE, "") for c in block.commands() if c.startswith("evenq-broker ")]
    settings = load(BrokerSettings, "broker", shlex.split(line)[1:], {})
    assert settings.shared_listener_names == {"external"}
    assert parse_listeners(settings.listeners)[0].port == 8091


def test_the_chart_takes_the_values_of_the_page(blocks, tmp_path):
    schema = yaml.safe_load((CHART / "values.schema.json").read_text(encoding="utf-8"))
    known = schema["properties"]["external"]["properties"]
    pages = [yaml.safe_load(block.text) for block in blocks(PAGE, "yaml")]
    assert [len(page["external"]["ports"]) for page in pages] == [1, 3]
    for page in pages:
        assert set(page["external"]) <= set(known)
