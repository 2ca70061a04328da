"""Exit codes and the one line that tells an error."""

import subprocess
import sys

import pytest

from evenq.cli import __main__ as cli
from evenq.errors import BadRequest, ConnectionFailed, PortInUse, Unauthorized


def with_command(monkeypatch, outcome, **options):
    class Parser:
        def parse_args(self, _):
            return type("Options", (), {"run": staticmethod(outcome), **options})

    monkeypatch.setattr(cli, "make_parser", Parser)


def raising(error):
    def run(_):
        raise error

    return run


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (ConnectionFailed("no server answers at x:1"), 1, "evenq: no server answers at x:1\n"),
        (PortInUse("port 8081 is in use"), 2, "evenq: port 8081 is in use\n"),
        (BadRequest("two\n  lines"), 2, "evenq: two lines\n"),
        (
            OSError(28, "No space left on device", "out.jsonl"),
            1,
            "evenq: [Errno 28] No space left on device: 'out.jsonl'\n",
        ),
        (ExceptionGroup("", [ExceptionGroup("", [BadRequest("inner")])]), 2, "evenq: inner\n"),
        (FileNotFoundError(2, "No such file", "orders.txt"), 2, "evenq: [Errno 2] No such file: 'orders.txt'\n"),
    ],
)
def test_an_error_is_one_line_and_an_exit_code(monkeypatch, capsys, error, code, text):
    with_command(monkeypatch, raising(error))
    assert cli.main([]) == code
    assert capsys.readouterr().err == text


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("message find orders --key caf\udce9", r"an argument is not valid UTF-8: 'caf\udce9'"),
        ("topic show caf\udce9", r"an argument is not valid UTF-8: 'caf\udce9'"),
        ("message find orders --from 99999999999999999999", "above 9223372036854775807 ms since the epoch"),
        ("offset reset billing --to 99999999999999999999", "above 9223372036854775807 ms since the epoch"),
    ],
)
def test_an_argument_that_cannot_be_sent_is_a_mistake_of_usage(run, line, text):
    code, _, err, _ = run(line)
    assert (code, err.count("\n")) == (2, 1)
    assert text in err


def test_a_terminal_that_cannot_show_a_text_keeps_its_traceback(monkeypatch):
    with_command(monkeypatch, raising(UnicodeEncodeError("latin-1", "→", 0, 1, "ordinal not in range(256)")))
    with pytest.raises(UnicodeEncodeError):
        cli.main([])


def test_ctrl_c_ends_with_130(monkeypatch):
    with_command(monkeypatch, raising(KeyboardInterrupt()))
    assert cli.main([]) == 130


def test_a_mistake_of_ours_keeps_its_traceback(monkeypatch):
    with_command(monkeypatch, raising(ExceptionGroup("", [ValueError("ours")])))
    with pytest.raises(ExceptionGroup):
        cli.main([])


def test_a_command_without_a_result_succeeded(monkeypatch):
    with_command(monkeypatch, lambda _: None)
    assert cli.main([]) == 0


@pytest.mark.parametrize("words", [[], ["topic"], ["group"], ["broker"], ["cluster"]])
def test_without_a_command_the_help_is_shown(words, capsys):
    assert cli.main(words) == 0
    assert "usage: evenq" in capsys.readouterr().out


def test_the_version_is_told(capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("evenq 0.")


@pytest.mark.parametrize(
    "words", [["topic", "list"], ["produce", "orders", "--body", "x"], ["consume", "orders", "--group", "g"]]
)
def test_nobody_at_the_endpoint_is_told_with_the_next_command(words, capsys):
    assert cli.main([*words, "--endpoint", "127.0.0.1:9", "--timeout", "1"]) == 5
    output = capsys.readouterr().err
    assert output.count("\n") == 1
    assert "127.0.0.1:9" in output
    assert "evenq up" in output
    assert "--endpoint" in output


def test_an_endpoint_without_a_port_is_a_mistake_of_usage(capsys):
    assert cli.main(["topic", "list", "--endpoint", "localhost"]) == 2
    assert "host:port" in capsys.readouterr().err


def test_a_server_that_wants_a_signature_is_told_with_the_ways_to_give_keys(monkeypatch, capsys):
    with_command(monkeypatch, raising(Unauthorized("the call is not signed: give an access key")), endpoint="x:1")
    assert cli.main([]) == 4
    output = capsys.readouterr().err
    assert output.count("\n") == 1
    assert "--credentials FILE" in output
    assert "EVENQ_ACCESS_KEY and EVENQ_SECRET_KEY" in output


def test_who_is_refused_for_a_clock_is_not_told_of_keys(monkeypatch, capsys):
    wrong = Unauthorized("the call is dated 1 (x-mq-date-time), it is 2 by this server's clock")
    with_command(monkeypatch, raising(wrong), endpoint="x:1")
    assert cli.main([]) == 4
    assert "--credentials" not in capsys.readouterr().err


def test_one_address_may_be_said_twice(monkeypatch, capsys):
    monkeypatch.setenv("EVENQ_ENDPOINT", "127.0.0.1:9?one-address")
    assert cli.main(["topic", "list", "--one-address"]) == 5
    assert "no server answers at 127.0.0.1:9?one-address;" in capsys.readouterr().err


@pytest.mark.parametrize("endpoint", ["evenq://127.0.0.1:9", "127.0.0.1:8,evenq://127.0.0.1:9"])
def test_an_option_of_tls_never_goes_with_plain_text(endpoint, capsys):
    assert cli.main(["topic", "list", "--tls", "--endpoint", endpoint]) == 2
    assert "is plain text, but a TLS option was given" in capsys.readouterr().err


@pytest.mark.parametrize("noun", ["topic", "group"])
def test_deleting_asks_for_yes(noun, capsys):
    assert cli.main([noun, "delete", "orders"]) == 1
    assert "--yes" in capsys.readouterr().err


def test_a_credentials_file_goes_before_the_keys_of_the_environment(monkeypatch, tmp_path, capsys):
    for variable in ("EVENQ_ACCESS_KEY", "EVENQ_SECRET_KEY", "EVENQ_CREDENTIALS"):
        monkeypatch.setenv(variable, "of-the-environment")
    missing = tmp_path / "keys.toml"
    assert cli.main(["topic", "list", "--credentials", str(missing)]) == 2
    assert (
        f"credentials file cannot be read: [Errno 2] No such file or directory: '{missing}'" in capsys.readouterr().err
    )


def test_python_m_evenq_is_the_command_line():
    done = subprocess.run([sys.executable, "-m", "evenq", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("evenq ")
