"""The reference of the Python API: one page per module, with the docstrings of its public names.

The modules are those of the table in docs/reference/api/README.md. On a code host that table is all there is; in the
site its first column links to the pages, which mkdocstrings fills from the source code without importing it.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

from mkdocs.exceptions import ConfigurationError

ROOT = Path(__file__).resolve().parents[2]
TABLE = "docs/reference/api/README.md"
ROW = re.compile(r"^\| `([\w.]+)` \|", re.MULTILINE)


@cache
def modules() -> dict[str, str]:
    """Returns the source path of the page of each module."""
    names = ROW.findall((ROOT / TABLE).read_text(encoding="utf-8"))
    return {name: f"docs/reference/api/{name}.md" for name in names}


def pages() -> dict[str, str]:
    """Returns the text of each page, by its source path."""
    return {path: _page(module) for module, path in modules().items()}


def with_links(text: str) -> str:
    """Returns the text of the table's page with a link for each module."""
    return ROW.sub(r"| [`\1`](\1.md) |", text)


def _page(module: str) -> str:
    lines = [
        f"# {module}",
        "",
        f"::: {module}",
        "    options:",
        "      members: false",
        "      show_root_heading: false",
    ]
    for name in names_of(module):
        lines += ["", f"::: {module}.{name}"]
    return "\n".join(lines) + "\n"


def names_of(module: str) -> list[str]:
    """Returns the public names of a module: its `__all__`, or its classes and functions in their order."""
    tree = ast.parse(_file_of(module).read_text(encoding="utf-8"))
    listed = [
        ast.literal_eval(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign | ast.AnnAssign)
        and node.value is not None
        and "__all__" in {ast.unparse(target) for target in getattr(node, "targets", [getattr(node, "target", None)])}
    ]
    if listed:  # pyspark_evenq has one for each case of its imports
        return [name for name in max(listed, key=len) if not name.startswith("__") and name != "errors"]
    defined = (node for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef))
    return [node.name for node in defined if not node.name.startswith("_")]


def _file_of(module: str) -> Path:
    for folder in ("src", "spark"):
        path = ROOT / folder / module.replace(".", "/")
        for file in (path.with_suffix(".py"), path / "__init__.py"):
            if file.is_file():
                return file
    raise ConfigurationError(f"{TABLE} names the module {module}, which is not in src/ or spark/")
