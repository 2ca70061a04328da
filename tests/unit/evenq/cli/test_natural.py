"""What is no whole number from 0 on is refused with words."""

import pytest

from evenq.cli.__main__ import main


@pytest.mark.parametrize(
    ("value", "said"),
    [("x", "'x' is not a whole number"), ("-1", "-1 is below 0"), ("2147483648", "2147483648 is above 2147483647")],
)
def test_a_number_that_is_none_is_named(value: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["broker", "remove-replica", "broker-a", f"--copy={value}"])
    assert f"--copy: {said}" in capsys.readouterr().err


@pytest.mark.parametrize("value", ["nan", "0", "99999999999999999999"])
def test_a_count_that_is_none_is_named_by_its_option(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = {"nan": "'nan' is not a whole number", "0": "0 is below 1"}.get(value, f"{value} is above 2147483647")
    for option in ("--timeout", "--queues"):
        with pytest.raises(SystemExit):
            main(["topic", "create", "orders", f"{option}={value}"])
        assert f"{option}: {said}" in capsys.readouterr().err
