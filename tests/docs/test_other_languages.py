"""The programs of the page on other languages, built with the official SDKs and run as printed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import NoReturn

import pytest

PAGE = "docs/guides/other_languages.md"
ROOT = Path(__file__).resolve().parents[2]
POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>evenq.tests</groupId><artifactId>hello</artifactId><version>1</version>
  <properties>
    <maven.compiler.source>17</maven.compiler.source><maven.compiler.target>17</maven.compiler.target>
    <project.build.sourceEncoding>UTF-8</project.build.sourceEncoding>
  </properties>
  <dependencies><dependency>
    <groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version>
  </dependency></dependencies>
</project>
"""
pytestmark = pytest.mark.timeout(600)


def missing(what: str) -> NoReturn:
    if os.environ.get("EVENQ_TEST_ALL"):
        pytest.fail(what)
    pytest.skip(what)


def program(name: str) -> str:
    path = shutil.which(name)
    return path or missing(f"no {name} on this machine")


def run(*command: str, cwd: Path, seconds: int = 400, **environment: str) -> str:
    done = subprocess.run(
        command,
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-3_000:]}{done.stderr[-3_000:]}"
    return done.stdout


def test_java_sends_as_printed(blocks, endpoint, shell, tmp_path):
    maven, java = program("mvn"), program("java")
    (block,) = blocks(PAGE, "java")
    group, artifact, version = re.search(r"`([\w.]+):([\w-]+):([\d.]+)`", (ROOT / PAGE).read_text()).groups()
    (tmp_path / "pom.xml").write_text(POM.format(group=group, artifact=artifact, version=version))
    source = tmp_path / "src" / "main" / "java" / "Hello.java"
    source.parent.mkdir(parents=True)
    source.write_text(block.at(endpoint))
    run(maven, "-q", "-B", "compile", "dependency:build-classpath", "-Dmdep.outputFile=classpath.txt", cwd=tmp_path)
    classpath = f"target/classes{os.pathsep}{(tmp_path / 'classpath.txt').read_text()}"
    assert run(java, "-cp", classpath, "Hello", cwd=tmp_path, seconds=90).strip()
    assert "from Java" in shell("evenq consume hello --group shell --from first --max 1")


def test_go_sends_as_printed(blocks, endpoint, shell, tmp_path):
    go = program("go")
    (block,) = blocks(PAGE, "go")
    module = re.search(r"go get (\S+@v[\d.]+)", (ROOT / PAGE).read_text())[1]
    (tmp_path / "main.go").write_text(block.at(endpoint))
    run(go, "mod", "init", "hello", cwd=tmp_path)
    run(go, "get", module, cwd=tmp_path)
    run(go, "mod", "tidy", cwd=tmp_path)
    run(go, "build", "-o", "hello", ".", cwd=tmp_path)
    assert run(str(tmp_path / "hello"), cwd=tmp_path, seconds=90).strip()
    assert "from Go" in shell("evenq consume hello --group shell --from first --max 1")
