"""What is no whole number from 0 on is refused with words."""

import pytest

from evenq.cli.__main__ import main


@pytest.mark.parametrize(("value", "said"), [("x", "'x' is not a whole number"), ("-1", "-1 is below 0")])
def test_a_number_that_is_none_is_named(value: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["broker", "remove-replica", "broker-a", f"--copy={value}"])
    assert f"--copy: {said}" in capsys.readouterr().err
