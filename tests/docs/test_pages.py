"""What can be said about every page without running it: links lead somewhere, commands exist, Python compiles."""

from __future__ import annotations

import argparse
import ast
import re
import shlex
import textwrap
from collections import Counter
from pathlib import Path

import pytest
from evenq_proofs.make_targets import make_targets

from evenq.cli.parser import make_parser

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"\[[^\]]+\]\(([^)#\s]+)(?:#[^)]*)?\)")
ANCHOR = re.compile(r"\[[^\]]+\]\(([^)#\s]*)#([^)\s]+)\)")
HEADING = re.compile(r"^#{1,6} (.*)$", re.MULTILINE)
CODE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
MACHINE = re.compile(r"(?<![\w./])/(?:work|root|tmp)/")
INLINE = re.compile(r"`(evenq [^`]+)`")
COMMANDS = {
    "up",
    "console",
    "topic",
    "group",
    "broker",
    "cluster",
    "produce",
    "consume",
    "store",
    "offset",
    "dlq",
    "message",
    "client",
    "verify",
    "context",
    "completion",
    "top",
    "bench",
    "auth",
}


def test_every_link_to_a_file_leads_somewhere(all_pages):
    links = [(page, target) for page in all_pages for target in LINK.findall((ROOT / page).read_text(encoding="utf-8"))]
    files = [(page, target) for page, target in links if "://" not in target]
    assert [f"{page}: {to}" for page, to in files if not (ROOT / page).parent.joinpath(to).exists()] == []


def test_every_link_to_a_place_in_a_page_leads_to_a_heading(all_pages):
    wrong = []
    for page in all_pages:
        text = CODE.sub("", (ROOT / page).read_text(encoding="utf-8"))
        for target, anchor in ANCHOR.findall(text):
            path = (ROOT / page).parent / target if target else ROOT / page
            if "://" not in target and path.suffix == ".md" and anchor not in anchors(path.read_text(encoding="utf-8")):
                wrong.append(f"{page}: {target}#{anchor}")
    assert wrong == []


def anchors(text):
    """As GitHub makes them of headings; one that comes again gets a number."""
    seen = Counter()
    for heading in HEADING.findall(CODE.sub("", text)):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        name = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        seen[name] += 1
        yield name if seen[name] == 1 else f"{name}-{seen[name] - 1}"


def test_every_test_and_make_target_that_a_page_names_is_there(all_pages):
    tests = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    known = {f"`{name}`" for name in re.findall(r"def (test_\w+)", tests)}
    known |= {f"`make {name}" for name in make_targets()}
    named = [
        (page, name)
        for page in all_pages
        if page != "CHANGELOG.md" and "decisions" not in page  # they tell what was
        for name in re.findall(r"`test_\w+`|`make [a-z-]+", (ROOT / page).read_text(encoding="utf-8"))
    ]
    assert len(named) > 100
    assert [f"{page}: {name}" for page, name in named if name not in known] == []


def test_no_page_names_a_folder_of_somebodys_machine(all_pages):
    assert [page for page in all_pages if MACHINE.search((ROOT / page).read_text(encoding="utf-8"))] == []


def test_every_python_block_compiles(all_blocks):
    blocks = [block for block in all_blocks if block.language == "python"]
    assert len(blocks) > 30
    for block in blocks:
        ast.parse(textwrap.dedent(block.text), filename=str(block))


def test_every_evenq_command_on_every_page_is_one(all_pages, all_blocks, monkeypatch):
    """Flags and all. Capitals stand for a reader's own values."""
    monkeypatch.setattr(argparse.ArgumentParser, "error", refuse)
    lines = [(str(block), command) for block in all_blocks if not block.language for command in block.commands()]
    for page in all_pages:
        lines += [(page, command) for command in INLINE.findall((ROOT / page).read_text(encoding="utf-8"))]
    parser, read, refused = make_parser(), 0, []  # making one takes its time
    for where, line in lines:
        words = shlex.split(line.partition(" | ")[0].partition(" > ")[0])
        if words[:1] != ["evenq"] or len(words) < 3 or words[1] not in COMMANDS or "|" in line or "[" in line:
            continue
        read += 1
        try:
            parser.parse_args(["1" if word in {"N", "M"} else word for word in words[1:]])
        except ValueError as error:
            refused.append(f"{where}: {line}: {error}")
    assert refused == [], "\n".join(refused)
    assert read > 20


def refuse(parser, message):
    raise ValueError(message)


def test_commands_of_other_tools_can_be_copied_as_they_stand(all_blocks):
    """No words between commands, and no upgrade that leaves out the values which a new chart brings."""
    lines = [
        (str(block), line.strip()) for block in all_blocks if not block.language for line in block.text.splitlines()
    ]
    installs = [(where, line) for where, line in lines if line.startswith("pip install ")]
    assert len(installs) > 2
    assert [one for one in installs if "  " in one[1].partition(" #")[0].strip()] == []
    upgrades = [(where, line) for where, line in lines if line.startswith("helm upgrade ")]
    assert len(upgrades) > 2
    assert [one for one in upgrades if "--reset-then-reuse-values" not in one[1]] == []


@pytest.mark.timeout(240)
def test_every_command_that_the_programs_name_is_one(monkeypatch):
    """In errors, logs and answers: texts in backticks, with 1 in the places of values."""
    monkeypatch.setattr(argparse.ArgumentParser, "error", refuse)
    parser, read, refused = make_parser(), 0, []
    for path in sorted(path for room in ("src", "services", "spark") for path in (ROOT / room).rglob("*.py")):
        if "stubs" in path.parts:
            continue
        for text in texts_of(ast.parse(path.read_text(encoding="utf-8"))):
            for line in INLINE.findall(text):
                words = shlex.split(line.replace("%s", "1").replace("%d", "1"))
                if len(words) < 3 or "|" in line or "[" in line or "..." in line:
                    continue
                read += 1
                try:
                    parser.parse_args(["1" if word in {"N", "M"} else word for word in words[1:]])
                except ValueError as error:
                    if not re.search("are required|invalid choice: '(1|[A-Z]+)'", str(error)):  # a mention, or a value
                        refused.append(f"{path.name}: {line}: {error}")
    assert refused == [], "\n".join(refused)
    assert read > 60


def texts_of(tree):
    inner = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(part.value if isinstance(part, ast.Constant) else "1" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inner:
            yield node.value
