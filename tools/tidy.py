"""Looks for what no linter sees: sizes, mirrored tests, banned folder names, TODOs without an issue, module docstrings,
class names that two modules define, forbidden doors (time, chance, files, sockets, threads, processes) outside the
rooms that own them, and tests that cannot fail.

`python tools/tidy.py` prints findings, one a line, and exits 1 if there are errors; warnings (tests that are not
mirrored yet) do not count. `tests/unit/tools/test_tidy.py` runs it too.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = (
    "src/evenq",
    "services/broker/evenq_broker",
    "services/nameserver/evenq_nameserver",
    "services/rebalancer/evenq_rebalancer",
    "spark/pyspark_evenq",
)
GENERATED = ("src/evenq/wire/stubs/",)
MODULE_LINES_MAX = 600
FUNCTION_LINES_MAX = 70
DOCSTRING_LINES_MAX = 16
DEEP_DOCSTRING_LINES_MAX = 40
DEEP_MODULES = frozenset(
    {
        "services/broker/evenq_broker/core/delivery/fence.py",
        "services/broker/evenq_broker/core/delivery/progress.py",
        "services/broker/evenq_broker/core/diagnosis/message_spans.py",
        "services/broker/evenq_broker/core/replication/rules.py",
        "services/broker/evenq_broker/core/staging/decisions.py",
        "services/broker/evenq_broker/core/transactions/table.py",
        "services/broker/evenq_broker/loops/delivery/ending.py",
        "services/broker/evenq_broker/loops/groups/sessions.py",
        "services/broker/evenq_broker/loops/replication/replica_log.py",
        "services/broker/evenq_broker/loops/staging/staging.py",
        "services/broker/evenq_broker/rpc/cluster/directing.py",
        "services/broker/evenq_broker/rpc/cluster/forwarding.py",
        "services/broker/evenq_broker/rpc/sending/homes.py",
        "services/broker/evenq_broker/rpc/sending/send.py",
        "services/rebalancer/evenq_rebalancer/core/election.py",
        "services/rebalancer/evenq_rebalancer/core/holds.py",
        "spark/pyspark_evenq/member/exclusive.py",
        "spark/pyspark_evenq/member/shared_member.py",
        "spark/pyspark_evenq/sink/staging.py",
        "spark/pyspark_evenq/source/scanning.py",
        "src/evenq/allocation/sticky.py",
        "src/evenq/client/loops/consumers/held_messages.py",
        "src/evenq/client/loops/consumers/iterating.py",
        "src/evenq/celery/broadcasts.py",
        "src/evenq/celery/deliveries.py",
        "src/evenq/client/loops/groups/ownership.py",
        "src/evenq/client/loops/reading/settler.py",
        "src/evenq/client/loops/routes/route_book.py",
        "src/evenq/client/loops/sending/sender.py",
        "src/evenq/client/rpc/transport.py",
        "src/evenq/local/local_store.py",
        "src/evenq/serving/auth/guard.py",
        "src/evenq/serving/binding.py",
        "src/evenq/serving/http2/connection.py",
        "src/evenq/store/copies/copy_replay.py",
        "src/evenq/store/index/message_index.py",
        "src/evenq/store/log/commit_log.py",
        "src/evenq/store/opening/recovery.py",
        "src/evenq/store/queues/reader.py",
        "src/evenq/store/timers/pending.py",
        "src/evenq/tables/exporting.py",
        "src/evenq/tables/iceberg.py",
        "src/evenq/wire/loop_net.py",
    }
)
"""Modules of protocol or recovery logic: they open with the problem, the idea, the invariants and an example."""
BANNED_NAMES = frozenset({"utils", "util", "helpers", "helper", "common", "misc", "manager", "base"})
TWO_FACES = "the SDK's sync and asyncio faces have the same public names: evenq.X and evenq.aio.X"
SHARED_CLASS_NAMES = {  # class names that more than one module defines: in how many modules, and the reason
    "Admin": (2, TWO_FACES),
    "EvenqBroker": (2, "brokers of taskiq and of FastStream are called by their product, as theirs for Redis"),
    "LitePushConsumer": (2, TWO_FACES),
    "LiteSimpleConsumer": (2, TWO_FACES),
    "Producer": (3, TWO_FACES + ", and local queues have evenq.local.Producer"),
    "PullConsumer": (2, TWO_FACES),
    "PushConsumer": (2, TWO_FACES),
    "SimpleConsumer": (2, TWO_FACES),
    "Message": (2, "public in evenq, where a server stores it, and in evenq.local, where it has no server's fields"),
    "DefaultSource": (
        2,
        "Spark looks it up; pyspark_evenq exports the one that fits the installed Spark",
    ),
}
ENTRY_POINTS = frozenset({"evenq.pytest_plugin"})
"""Modules that other programs load by their names in pyproject.toml."""
NAME_MAX = 100
"""Characters of a string that may name a module."""
TODO = re.compile(r"#.*\b(TODO|FIXME|XXX)\b(?!\(#\d+\))")

CODE = re.compile(r"^(class|def|async def) ", re.MULTILINE)

CHECKS = frozenset({"raises", "warns", "fail", "until", "wait_for"})
"""Calls that fail a test beside the functions of the tests that assert or raise, and names that begin like CHECK."""
CHECK = re.compile(r"_*(assert|check|verify|eventually|expect|must|only|pull_everything)")

# Rooms that own a door to the outside. Everything else gets time, chance, disk and net as arguments.
ROOMS_WITH_DOORS = (
    "src/evenq/runtime/",
    "src/evenq/store/io/disk.py",
    "src/evenq/wire/net.py",
    "src/evenq/wire/tls_channels.py",  # fetches a certificate that is pinned
    "src/evenq/wire/tls_diagnosis.py",  # asks the peer once more why TLS with it fails
    "src/evenq/serving/",
    "src/evenq/cli/",
    "src/evenq/testing/",
    "spark/",  # Spark's runner and workers are plain processes of another program
)
DOORS_OF = {  # one door each, with the reason
    "src/evenq/client/loops/clients/background.py": {"threading"},  # the sync face's own loop thread
    "src/evenq/client/loops/sending/gates.py": {"threading"},  # lets many threads of the user wait for room
    "src/evenq/client/wiring.py": {"socket"},  # the host's name for client ids
    "services/broker/evenq_broker/loops/diagnosis/span_export.py": {"threading"},  # the collector may be slow
    "src/evenq/store/log/writer.py": {"threading"},  # the one writer thread of the disk
    "src/evenq/store/log/commit_log.py": {"threading"},  # the writer and the flush thread sync one file
    **{
        f"src/evenq/local/{name}.py": {"threading"}  # queues for the threads of a user's process
        for name in (
            "consume_queue",
            "consumer",
            "embedded",
            "engine",
            "local_store",
            "memory",
            "progress",
            "queues",
            "tail",
        )
    },
    "src/evenq/wire/blocking_net.py": {"threading"},  # it is there for the threads of a user's process
    "src/evenq/wire/blocking_grpc.py": {"threading"},  # the same
    "src/evenq/wire/blocking_socket.py": {"socket"},  # the sync face speaks to servers without gRPC
    "src/evenq/wire/duplex_call.py": {"socket"},  # links between brokers, without gRPC's client
    "src/evenq/wire/loop_net.py": {"socket"},  # clients of processes that fork, without gRPC
    "src/evenq/celery/inbox.py": {"threading"},  # from the loop's thread to the thread of a kombu connection
    "src/evenq/celery/session.py": {"threading"},  # connections of kombu in many threads share it
    "src/evenq/store/copies/copy_replay.py": {"threading"},  # it and the copy's own thread change one folder in turns
    "src/evenq/store/io/descriptors.py": {"threading"},  # its spares are for every thread of the store
    "src/evenq/store/io/files.py": {"threading"},  # open files are shared by the writer and the readers' pool
    "src/evenq/serving/kubernetes/api.py": {"threading"},  # its callers are worker threads
    "services/broker/evenq_broker/loops/coordinators/lease.py": {"threading"},  # a watch sits in a read for minutes
    "services/rebalancer/evenq_rebalancer/loops/topology.py": {"threading"},  # a watch sits in a read for minutes
}
FORBIDDEN_MODULES = frozenset({"socket", "threading", "subprocess", "pickle", "multiprocessing", "shelve", "marshal"})
FORBIDDEN_CALLS = frozenset({"open", "eval", "exec", "compile", "__import__"})
TIME_FUNCTIONS = frozenset({"time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "sleep"})
RANDOM_CLASSES = frozenset({"Random", "SystemRandom"})
OS_FUNCTIONS = frozenset({"system", "popen", "fork", "execv", "execve", "spawnv"})


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing to put right."""

    path: str
    line: int
    text: str
    warning: bool = False

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {'warning: ' if self.warning else ''}{self.text}"


def modules(root: Path = ROOT) -> Iterator[tuple[str, str]]:
    """Relative path and source of each module of ours, generated ones left out."""
    for source in SOURCES:
        for path in sorted((root / source).rglob("*.py")):
            relative = path.relative_to(root).as_posix()
            if not relative.startswith(GENERATED):
                yield relative, path.read_text(encoding="utf-8")


def check_module(relative: str, source: str) -> list[Finding]:
    """All findings in one module."""
    tree = ast.parse(source)
    findings = [
        *_sizes(relative, source, tree),
        *_names(relative),
        *_todos(relative, source),
        *_docstring(relative, tree),
    ]
    if not relative.startswith(ROOMS_WITH_DOORS):
        findings += _doors(relative, tree)
    return findings


def _sizes(relative: str, source: str, tree: ast.Module) -> Iterator[Finding]:
    lines = source.count("\n")
    if lines > MODULE_LINES_MAX:
        yield Finding(relative, 1, f"{lines} lines, the limit is {MODULE_LINES_MAX}: split the module")
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > FUNCTION_LINES_MAX:
                yield Finding(
                    relative, node.lineno, f"{node.name} has {length} lines, the limit is {FUNCTION_LINES_MAX}"
                )


def _names(relative: str) -> Iterator[Finding]:
    for part in Path(relative).parts:
        if part.removesuffix(".py") in BANNED_NAMES:
            yield Finding(relative, 1, f"{part!r} says nothing: name it for what is in it")


def _todos(relative: str, source: str) -> Iterator[Finding]:
    for number, line in enumerate(source.splitlines(), start=1):
        if TODO.search(line):
            yield Finding(relative, number, "a TODO names its issue: TODO(#12)")


def _docstring(relative: str, tree: ast.Module) -> Iterator[Finding]:
    docstring = ast.get_docstring(tree)
    if docstring is None:
        yield Finding(relative, 1, "no module docstring: what it is, who calls it, what is always true")
        return
    limit = DEEP_DOCSTRING_LINES_MAX if relative in DEEP_MODULES else DOCSTRING_LINES_MAX
    if docstring.count("\n") + 1 > limit:
        yield Finding(relative, 1, f"the module docstring has over {limit} lines; a page in docs is the place")


def _doors(relative: str, tree: ast.Module) -> Iterator[Finding]:
    allowed = DOORS_OF.get(relative, set())
    for node in ast.walk(tree):
        for name in _imported(node):
            if name in FORBIDDEN_MODULES and name not in allowed:
                yield Finding(relative, node.lineno, f"imports {name}: that door belongs to another room")  # type: ignore[attr-defined]  # only statements import
        if isinstance(node, ast.Call) and (call := _forbidden_call(node.func)) and call not in allowed:
            yield Finding(relative, node.lineno, f"calls {call}: take it as an argument, or move the call to its room")


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name.split(".")[0] for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
        return [node.module.split(".")[0]]
    return []


def _forbidden_call(function: ast.expr) -> str:
    if isinstance(function, ast.Name):
        return function.id if function.id in FORBIDDEN_CALLS else ""
    if not isinstance(function, ast.Attribute) or not isinstance(function.value, ast.Name):
        return ""
    module, name = function.value.id, function.attr
    forbidden = (
        (module == "time" and name in TIME_FUNCTIONS)
        or (module == "random" and name not in RANDOM_CLASSES)
        or (module == "os" and name in OS_FUNCTIONS)
        or (module == "yaml" and name == "load")
    )
    return f"{module}.{name}" if forbidden else ""


def shared_class_names(
    sources: Iterable[tuple[str, str]], allowed: Mapping[str, tuple[int, str]] = SHARED_CLASS_NAMES
) -> Iterator[Finding]:
    """Classes at the top of two or more modules with one name, which a reader can only tell apart by the imports."""
    homes: dict[str, dict[str, int]] = {}
    for relative, source in sources:
        for node in ast.parse(source).body:
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name, {}).setdefault(relative, node.lineno)
    for name, lines in sorted(homes.items()):
        if name not in allowed:
            first, *others = lines
            for relative in others:
                text = f"class {name} is in {first} too: keep one if both are one idea, else name what each is"
                yield Finding(relative, lines[relative], text)
    for name, (count, _) in sorted(allowed.items()):
        if len(lines := homes.get(name, {})) != count:
            where = ", ".join(lines) or "no module"
            yield Finding("tools/tidy.py", 1, f"class {name} is in {where}; SHARED_CLASS_NAMES allows {count} modules")


def unmirrored(root: Path = ROOT) -> Iterator[Finding]:
    """Modules with code and no test file at the mirrored place."""
    for relative, source in modules(root):
        path = Path(relative)
        if path.name in {"__init__.py", "__main__.py"} or not CODE.search(source):
            continue
        inside = (
            path.relative_to("src")
            if relative.startswith("src/")
            else Path(*path.parts[2:] if relative.startswith("services/") else path.parts[1:])
        )
        test_path = root / "tests" / "unit" / inside.parent / f"test_{path.stem}.py"
        if not test_path.exists():
            yield Finding(relative, 1, f"no {test_path.relative_to(root).as_posix()}", warning=True)


def without_importer(sources: Iterable[tuple[str, str]]) -> Iterator[Finding]:
    """Shipped modules that no shipped module imports, by a statement or by its name in a string: they belong beside
    the tests, or to nobody.
    """
    found = [(relative, ast.parse(source)) for relative, source in sources]
    named: set[str] = set()
    for relative, tree in found:
        package, _, _ = _module_of(relative).rpartition(".")
        parent, _, _ = package.rpartition(".")
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                named.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                named.update((node.module, *(f"{node.module}.{alias.name}" for alias in node.names)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) <= NAME_MAX:
                named.update((node.value, f"{package}.{node.value}", f"{parent}.{node.value}"))
    for relative, _ in found:
        path = Path(relative)
        if path.name not in {"__init__.py", "__main__.py"} and _module_of(relative) not in named | ENTRY_POINTS:
            yield Finding(relative, 1, "no shipped module imports it: move it beside the tests that do, or delete it")


def _module_of(relative: str) -> str:
    """The dotted name of a shipped module."""
    source = next(one for one in SOURCES if relative.startswith(one + "/"))
    return relative.removeprefix(str(Path(source).parent) + "/").removesuffix(".py").replace("/", ".")


def sources_of_tests(root: Path = ROOT) -> Iterator[tuple[str, str]]:
    """Relative path and source of each module of the tests, those that they share among them."""
    for path in sorted([*(root / "tests").rglob("*.py"), *(root / "src/evenq/testing").rglob("*.py")]):
        yield path.relative_to(root).as_posix(), path.read_text(encoding="utf-8")


def tests_that_cannot_fail(sources: Iterable[tuple[str, str]]) -> Iterator[Finding]:
    """Tests without a check, and tests whose checks all stand in branches: with the right parameter they prove nothing.

    A check is an assert, `pytest.raises`, or a call to what asserts or raises itself, in any module of the tests. A
    branch in a loop is a filter, and one of a property test is taken by other examples: they are left alone.
    """
    trees = [(relative, ast.parse(source)) for relative, source in sources]
    checking = _checking_names(tree for _, tree in trees)
    for relative, tree in trees:
        brought = {name.name for one in tree.body if isinstance(one, ast.ImportFrom) for name in one.names}
        sure = _checking_names([tree]) | checking & brought
        for test in ast.walk(tree):
            if not isinstance(test, ast.FunctionDef | ast.AsyncFunctionDef) or not test.name.startswith("test_"):
                continue
            if not _checks(test, checking):
                yield Finding(relative, test.lineno, f"{test.name} checks nothing: it cannot fail but by an error")
            elif _checks(test, CHECKS) and not _is_property(test) and not _surely(test.body, sure):
                text = "checks nothing in some branch: make it two tests, or check something in each"
                yield Finding(relative, test.lineno, f"{test.name} {text}")


def _checking_names(trees: Iterable[ast.Module]) -> frozenset[str]:
    """Names of functions that assert or raise, or call one that does."""
    checking, calls = set(CHECKS), []
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("test_"):
                if _checks(node, CHECKS):
                    checking.add(node.name)
                calls.append((node.name, {_called(one) for one in ast.walk(node) if isinstance(one, ast.Call)}))
    size = 0
    while len(checking) > size:
        size = len(checking)
        checking |= {name for name, called in calls if called & checking}
    return frozenset(checking)


def _checks(node: ast.AST, names: AbstractSet[str]) -> bool:
    """Whether anything in it may fail a test."""
    return any(
        isinstance(one, ast.Assert | ast.Raise)
        or (isinstance(one, ast.Call) and ((name := _called(one)) in names or CHECK.match(name) is not None))
        for one in ast.walk(node)
    )


def _called(call: ast.Call) -> str:
    function = call.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _is_property(test: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(isinstance(one, ast.Call) and _called(one) == "given" for one in test.decorator_list)


def _surely(body: Iterable[ast.stmt], names: AbstractSet[str]) -> bool:
    """Whether a check is reached, whatever branch is taken."""
    for one in body:
        match one:
            case ast.If(test=test, body=first, orelse=other):
                if _checks(test, names) or (_surely(first, names) and _surely(other, names)):
                    return True
            case ast.Match(cases=cases):
                if all(_surely(case.body, names) for case in cases):
                    return True
            case ast.Try(body=tried, handlers=handlers, orelse=other, finalbody=last):
                if _surely([*tried, *other, *last], names) or any(_checks(one, names) for one in handlers):
                    return True
            case ast.With(items=items, body=inner) | ast.AsyncWith(items=items, body=inner):
                if any(_checks(item, names) for item in items) or _surely(inner, names):
                    return True
            case ast.FunctionDef(body=inner) | ast.AsyncFunctionDef(body=inner):
                if _surely(inner, names):
                    return True
            case _ if _checks(one, names):
                return True
    return False


def empty_folders(root: Path = ROOT) -> Iterator[Finding]:
    """Folders of ours whose name says nothing, with or without modules."""
    for top in ("src", "services", "spark", "tests", "tools", "benchmarks", "helm", "docker", "docs"):
        for folder in sorted((root / top).rglob("*")):
            if folder.is_dir() and folder.name in BANNED_NAMES and ".venv" not in folder.parts:
                yield Finding(folder.relative_to(root).as_posix(), 1, "a folder with this name says nothing: rename it")


def main() -> int:
    """Print all findings; 1 if one of them is an error."""
    findings = [finding for relative, source in modules() for finding in check_module(relative, source)]
    findings += [*empty_folders(), *shared_class_names(modules()), *unmirrored()]
    findings += without_importer(modules())
    findings += tests_that_cannot_fail(sources_of_tests())
    for finding in findings:
        print(finding)
    errors = sum(not finding.warning for finding in findings)
    print(f"tidy: {errors} errors, {len(findings) - errors} warnings")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
