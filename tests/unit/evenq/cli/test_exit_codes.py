"""One table for all commands: each error has one exit code, and the reference lists them."""

from pathlib import Path

import pytest

from evenq import errors
from evenq.cli.exit_codes import ExitCode, NotConfirmed, exit_code
from evenq.client.rpc.transport import AccessPointSilent

PAGE = Path(__file__).parents[4] / "docs" / "reference" / "cli.md"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.BadRequest("x"), 2),
        (errors.IllegalTopic("x"), 2),
        (errors.SettingsError("x"), 2),
        (errors.PortInUse("x"), 2),
        (errors.IllegalAccessPoint("x"), 2),
        (errors.TopicNotFound("x"), 3),
        (errors.GroupNotFound("x"), 3),
        (errors.MessageNotFound("x"), 3),
        (errors.Unauthorized("x"), 4),
        (errors.Forbidden("x"), 4),
        (errors.PreconditionFailed("x"), 4),
        (errors.TooManyRequests("x"), 4),
        (errors.NotImplementedYet("x"), 4),
        (AccessPointSilent("x"), 5),
        (errors.TlsFailed("x"), 5),
        (errors.ConnectionFailed("done here, but not at broker-c"), 1),
        (errors.RequestTimeout("not yet"), 1),
        (errors.InternalError("x"), 1),
        (NotConfirmed("add --yes"), 1),
    ],
)
def test_each_error_has_its_code(error, code):
    assert exit_code(error) == code


def test_the_reference_lists_every_code():
    page = PAGE.read_text()
    assert all(f"| {code.value} | {code.meaning} |" in page for code in ExitCode)
    assert all(len(code.meaning) <= 100 for code in ExitCode)


def test_what_was_not_confirmed_is_no_mistake_of_the_command_line(run):
    for line in ("topic delete t", "group delete g"):
        code, _, err, calls = run(line)
        assert (code, calls) == (1, [])
        assert "add --yes" in err
