"""Runs tests in several processes that are forked after one collection: `pytest --forks 5`.

To import and collect 13,500 tests takes a process nine seconds of CPU, and each process of pytest-xdist does it again.
Here one process collects and forks; a file is then run by the first process that has nothing to do.

- The numbers of all files are in one pipe before the first fork. A process reads the next one when it has finished a
  file, so that nobody has to distribute them.
- Each process sends the reports of its tests through a pipe of its own. The first process passes them to the hooks of
  pytest, as if the tests had run there, so summaries, `--durations`, `--lf` and `-x` work as always.
- Each collected test is reported. If a process dies, the tests of its file that it did not finish have failed.

A file is not divided, because its tests may share a cluster. A module that starts threads while it is imported breaks
this: a fork has only one thread (decision 157).
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import warnings
from collections.abc import Collection, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, cast

import pytest

NUMBER_BYTES = 4
FILES_MAX = 16_384
"""Their numbers fill a pipe of Linux, 64 KiB."""
EACH_ALONE = "sim"
"""Folder whose files are divided: a single one of them takes a minute."""
DONE = None
"""The last message of a process."""
END_SECONDS = 60.0
"""For fixtures that end after an interrupt, among them those with servers."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--forks", type=int, default=0, metavar="N", help="run files in N processes, after one collection")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--forks"):
        config.pluginmanager.register(Forks(config.getoption("--forks")))


class Forks:
    """The process that collects, and reports."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.files: list[list[pytest.Item]] = []
        self.open: dict[tuple[int, int], pytest.Item] = {}
        """Tests without a report, by the number of their file and their place in it."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        if session.testsfailed or session.config.option.collectonly:
            return None  # pytest's own loop handles both
        self.files = divided(session.items)
        self.open = {(file, place): item for file, items in enumerate(self.files) for place, item in enumerate(items)}
        processes = self._fork(session)
        try:
            self._report(session, processes)
        finally:
            end(processes.values())
        if session.shouldfail:  # the limit of `-x`
            raise session.Failed(session.shouldfail)
        if session.shouldstop:
            raise session.Interrupted(session.shouldstop)
        for item in self.open.values():
            replay(session, item, [report_of_dead(item)])
        return True

    def _fork(self, session: pytest.Session) -> dict[Connection[Any, Any], BaseProcess]:
        """Returns the processes by the pipe that they write to."""
        session.config.get_terminal_writer().flush()  # otherwise each process writes it, too
        temporary_folders(session.config).getbasetemp()  # otherwise each process clears it
        assert len(self.files) <= FILES_MAX, f"{len(self.files)} files, at most {FILES_MAX} are possible"
        queue, filled = os.pipe()
        os.write(filled, b"".join(number.to_bytes(NUMBER_BYTES) for number in range(len(self.files))))
        os.close(filled)  # processes read until its end
        context = multiprocessing.get_context("fork")
        processes: dict[Connection[Any, Any], BaseProcess] = {}
        for number in range(min(self.count, len(self.files))):
            reader, writer = context.Pipe(duplex=False)
            worker = Worker(session, number, self.files, queue, writer, [*processes, reader])
            process = context.Process(target=worker.run, name=f"fork{number}")
            process.start()
            writer.close()
            processes[reader] = process
        os.close(queue)
        return processes

    def _report(self, session: pytest.Session, processes: dict[Connection[Any, Any], BaseProcess]) -> None:
        """Until all processes have ended, or a limit of failures is reached."""
        running = dict(processes)
        while running and not (session.shouldfail or session.shouldstop):
            ready = cast("list[Connection[Any, Any]]", wait(list(running), timeout=1))
            if not ready:  # a process that a test forked may hold the pipe of one that died
                running = {one: process for one, process in running.items() if process.is_alive() or one.poll()}
            for reader in ready:
                try:
                    message = reader.recv()
                except EOFError:
                    message = DONE
                if message is DONE:
                    running.pop(reader).join(END_SECONDS)  # it ends by itself
                elif isinstance(message, Warned):
                    message.replay(session)
                else:
                    place, reports = message
                    replay(session, self.open.pop(place), [restored(session.config, report) for report in reports])


def divided(items: Sequence[pytest.Item]) -> list[list[pytest.Item]]:
    """Returns the tests by file, in their order; those of `EACH_ALONE` one by one."""
    files = [list(of_file) for _, of_file in itertools.groupby(items, key=lambda item: item.path)]
    parts = ([[item] for item in file] if file[0].get_closest_marker(EACH_ALONE) else [file] for file in files)
    return list(itertools.chain.from_iterable(parts))


def temporary_folders(config: pytest.Config) -> Any:
    """Returns the factory behind `tmp_path`; pytest has no public way to it outside of a test."""
    return config._tmp_path_factory  # type: ignore[attr-defined]  # private


def replay(session: pytest.Session, item: pytest.Item, reports: Sequence[pytest.TestReport]) -> None:
    hook = session.config.hook
    hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for report in reports:
        hook.pytest_runtest_logreport(report=report)
    hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)


def restored(config: pytest.Config, report: dict[str, Any]) -> pytest.TestReport:
    result: pytest.TestReport = config.hook.pytest_report_from_serializable(config=config, data=report)
    return result


def report_of_dead(item: pytest.Item) -> pytest.TestReport:
    text = "the process of this file died, during this test or before it"
    return pytest.TestReport(item.nodeid, item.location, {}, "failed", text, "call")


def end(processes: Collection[BaseProcess]) -> None:
    """Interrupts those that still run, so that their fixtures end."""
    for process in processes:
        if process.pid is not None and process.is_alive():
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGINT)
    for process in processes:
        process.join(END_SECONDS)
        process.kill()


class Warned:
    """A warning that is passed on as text: its class may be one that only its own process has."""

    def __init__(self, warned: warnings.WarningMessage, rest: dict[str, Any]) -> None:
        self.text, self.category = str(warned.message), warned.category.__name__
        self.filename, self.lineno, self.rest = warned.filename, warned.lineno, rest

    def replay(self, session: pytest.Session) -> None:
        category = type(self.category, (Warning,), {})
        warned = warnings.WarningMessage(self.text, category, self.filename, self.lineno)
        session.config.hook.pytest_warning_recorded.call_historic(kwargs={"warning_message": warned, **self.rest})


class Worker:
    """A forked process. `others`: ends of pipes that belong to the first process only."""

    def __init__(
        self,
        session: pytest.Session,
        number: int,
        files: list[list[pytest.Item]],
        queue: int,
        writer: Connection[Any, Any],
        others: Sequence[Connection[Any, Any]],
    ) -> None:
        self.session, self.number, self.files = session, number, files
        self.queue, self.writer, self.others = queue, writer, others
        self.config = session.config
        self.reports: list[dict[str, Any]] = []
        self.begun = False

    def run(self) -> None:
        for reader in self.others:  # otherwise a write to a first process that died would wait, not fail
            reader.close()
        self._separate()
        self.config.pluginmanager.register(self)
        self.begun = True
        try:
            while number := os.read(self.queue, NUMBER_BYTES):
                self._run_file(int.from_bytes(number))
            self.writer.send(DONE)
        except KeyboardInterrupt:
            pass  # the first process reports it
        finally:
            self.session._setupstate.teardown_exact(None)

    def _separate(self) -> None:
        """Gives this process files of its own for what tests print, and for `tmp_path`."""
        capture: Any = self.config.pluginmanager.getplugin("capturemanager")
        capture.stop_global_capturing()
        capture.start_global_capturing()
        capture.suspend_global_capture()
        self.config.get_terminal_writer()._file = open(os.devnull, "w")  # noqa: SIM115 - until the process ends
        folders = temporary_folders(self.config)
        folders._basetemp = folders.getbasetemp() / f"fork{self.number}"
        folders._basetemp.mkdir(mode=0o700)

    def _run_file(self, number: int) -> None:
        items = self.files[number]
        for place, (item, following) in enumerate(itertools.zip_longest(items, items[1:])):
            self.reports = []
            item.ihook.pytest_runtest_protocol(item=item, nextitem=following)
            self.writer.send(((number, place), self.reports))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.reports.append(self.config.hook.pytest_report_to_serializable(config=self.config, report=report))

    def pytest_warning_recorded(
        self, warning_message: warnings.WarningMessage, when: str, nodeid: str, location: tuple[str, int, str] | None
    ) -> None:
        if self.begun:  # those of the collection are repeated for each new plugin
            self.writer.send(Warned(warning_message, {"when": when, "nodeid": nodeid, "location": location}))
