"""gRPC's core reads its variable when it is imported: whoever sets it later sets nothing."""

import os
import subprocess
import sys

import pytest

from evenq.runtime.quiet_grpc import quiet_grpc

PROGRAM = """
import os, sys
from importlib import import_module
main = import_module(sys.argv[1]).main
assert "grpc" not in sys.modules, "imported before the program could say anything"
sys.argv[1:] = ["--help"]
try:
    main()
except SystemExit:
    pass
assert os.environ["GRPC_VERBOSITY"] == "NONE"
"""


@pytest.mark.parametrize(
    "module",
    ["evenq_broker.__main__", "evenq_nameserver.__main__", "evenq_rebalancer.__main__", "evenq.cli.__main__"],
)
def test_every_program_says_it_before_grpc_is_imported(module: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "GRPC_VERBOSITY"}
    subprocess.run([sys.executable, "-c", PROGRAM, module], env=environment, check=True, capture_output=True)


def test_what_the_environment_says_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRPC_VERBOSITY", "DEBUG")
    quiet_grpc()
    assert os.environ["GRPC_VERBOSITY"] == "DEBUG"
    monkeypatch.delenv("GRPC_VERBOSITY")
    quiet_grpc()
    assert os.environ["GRPC_VERBOSITY"] == "NONE"
