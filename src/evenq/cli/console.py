"""`evenq console`: serves the web console until SIGINT or SIGTERM."""

from __future__ import annotations

import argparse
import asyncio
import re
import signal

from evenq.cli.output import print_lines
from evenq.console.server import ConsoleServer
from evenq.console.settings import ConsoleSettings
from evenq.errors import SettingsError
from evenq.runtime.clock import SystemClock
from evenq.serving.program.logs import setup_logs

_PREFIX = re.compile(r"(/[A-Za-z0-9._~-]+)*")


def run(options: argparse.Namespace) -> int:
    setup_logs(options.log_level, program="console")
    asyncio.run(_serve(settings_of(options)))
    return 0


async def _serve(settings: ConsoleSettings) -> None:
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with ConsoleServer(settings, SystemClock()) as server:
        print_lines(f"console {server.url} ({'changes allowed' if settings.allow_changes else 'read-only'})")
        await stop.wait()


def settings_of(options: argparse.Namespace) -> ConsoleSettings:
    """Returns the settings of the command line. Raises SettingsError."""
    prefix = options.prefix.rstrip("/")
    if not _PREFIX.fullmatch(prefix):
        raise SettingsError(f"--prefix {options.prefix} is not a path such as /evenq")
    if (options.https_certificate is None) != (options.https_key is None):
        raise SettingsError("give both --https-certificate and --https-key, or neither")
    for option, file in (("--https-certificate", options.https_certificate), ("--https-key", options.https_key)):
        if file is not None and not file.is_file():
            raise SettingsError(f"{option} {file} is not a file")
    return ConsoleSettings(
        endpoint=options.endpoint,
        host=options.host,
        port=options.port,
        prefix=prefix,
        allow_changes=options.allow_changes,
        names=tuple(options.name),
        certificate=options.https_certificate,
        key=options.https_key,
        https=options.behind_https or options.https_certificate is not None,
    )
