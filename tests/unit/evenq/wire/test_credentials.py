"""Where a client's keys come from, and that they are in no text."""

from pathlib import Path

import pytest
from evenq_proofs.loop_net import LoopNet

import evenq
from evenq.client.wiring import ClientContext
from evenq.errors import SettingsError
from evenq.runtime.clock import FakeClock
from evenq.wire.credentials import Credentials
from evenq.wire.signed_net import SignedNet


def test_keys_come_from_the_environment_or_a_file_that_it_names(tmp_path: Path) -> None:
    assert Credentials.of_environment({}) is None
    keys = {"EVENQ_ACCESS_KEY": "orders", "EVENQ_SECRET_KEY": "s3cret-key"}
    assert Credentials.of_environment(keys) == Credentials(access_key="orders", secret_key="s3cret-key")
    file = tmp_path / "keys.toml"
    file.write_text('access_key = "root"\nsecret_key = "of-a-file"\nsecurity_token = "t"\n')
    variables = Credentials.of_environment({"EVENQ_CREDENTIALS": str(file)})
    assert variables == Credentials(access_key="root", secret_key="of-a-file", security_token="t")
    both = Credentials.of_environment({"EVENQ_CREDENTIALS": str(file), **keys, "EVENQ_SECURITY_TOKEN": "sts"})
    assert both == Credentials(access_key="orders", secret_key="s3cret-key", security_token="sts")


@pytest.mark.parametrize("given", ["EVENQ_ACCESS_KEY", "EVENQ_SECRET_KEY"])
def test_half_of_the_keys_is_an_error_that_names_the_other_half(given: str) -> None:
    with pytest.raises(SettingsError, match=f"{given} is set without EVENQ_"):
        Credentials.of_environment({given: "something"})


def test_wrong_keys_and_files_are_refused_without_telling_the_secret(tmp_path: Path) -> None:
    for access_key in ("", "a/b", "a b", "ä"):
        with pytest.raises(SettingsError, match="access_key"):
            Credentials(access_key=access_key, secret_key="s3cret-key")
    with pytest.raises(SettingsError, match="secret_key is empty"):
        Credentials(access_key="orders", secret_key="")
    file = tmp_path / "keys.toml"
    with pytest.raises(SettingsError, match="cannot be read"):
        Credentials.of_file(file)
    for content in ('access_key = "a"\nsecret_key = "s3cret', 'secret = "s3cret"', "access_key = 1"):
        file.write_text(content)
        with pytest.raises(SettingsError) as refused:
            Credentials.of_file(file)
        assert "s3cret" not in str(refused.value)


def test_neither_secret_nor_token_is_in_a_text_of_them() -> None:
    result = repr(evenq.Credentials(access_key="orders", secret_key="s3cret-key", security_token="t0ken"))
    assert "orders" in result
    assert "s3cret" not in result
    assert "t0ken" not in result


def test_a_client_signs_with_its_own_keys_before_those_of_its_ground(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("EVENQ_ACCESS_KEY", "EVENQ_SECRET_KEY", "EVENQ_CREDENTIALS"):
        monkeypatch.delenv(variable, raising=False)
    assert ClientContext.of(None, None).credentials is None
    mine = Credentials(access_key="orders", secret_key="s3cret-key")
    assert ClientContext.of(None, mine).credentials == mine
    monkeypatch.setenv("EVENQ_ACCESS_KEY", "root")
    monkeypatch.setenv("EVENQ_SECRET_KEY", "of-the-environment")
    assert ClientContext.of(None, None).credentials == Credentials(access_key="root", secret_key="of-the-environment")
    assert ClientContext.of(None, mine).credentials == mine
    clock = FakeClock()
    handed_in = ClientContext(clock=clock, rng=ClientContext.real().rng, net=LoopNet(clock))
    assert handed_in.open_net() is handed_in.net
    assert isinstance(ClientContext.of(handed_in, mine).open_net(), SignedNet)
