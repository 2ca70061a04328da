"""Settings: precedence, misspelt names, bounds, help."""

from pathlib import Path

import pytest
from pydantic import BaseModel, Field

from evenq.errors import SettingsError
from evenq.serving.program.settings import HelpWanted, ServerSettings, load


class Store(BaseModel, frozen=True, extra="forbid"):
    """The files."""

    segment_bytes: int = Field(default=1 << 20, ge=4_096, le=1 << 30, description="Size of one file, bytes.")
    path: Path | None = Field(default=None, description="Data folder; empty = memory.")


class Settings(ServerSettings, frozen=True, extra="forbid"):
    """A program for tests."""

    store: Store = Field(default_factory=Store)
    auto_create: bool = Field(default=True, description="Create what is missing.")


def settings(*argv: str, **environ: str) -> Settings:
    return load(Settings, "broker", argv, environ)


def test_defaults_hold_where_nothing_is_said() -> None:
    assert settings() == Settings()
    assert settings(PATH="/bin", EVENQ_NAMESERVER_PORT="1").port == 0


def test_a_flag_wins_over_the_environment_and_that_over_the_default() -> None:
    environ = {"EVENQ_BROKER_STORE__SEGMENT_BYTES": "8192", "EVENQ_BROKER_PORT": "1"}
    result = settings("--port", "2", "--store.path=/data", **environ)
    assert (result.store.segment_bytes, result.port, result.store.path) == (8192, 2, Path("/data"))


def test_flags_take_dashes_or_underscores_and_both_ways_of_values() -> None:
    assert settings("--metrics-port=-1").metrics_port == -1
    assert settings("--metrics_port", "-1").metrics_port == -1
    assert settings("--store.segment-bytes", "4096").store.segment_bytes == 4096


def test_switches_need_no_value() -> None:
    assert settings("--no-auto-create").auto_create is False
    assert settings("--auto-create").auto_create is True
    assert settings("--auto-create=false").auto_create is False
    assert settings(EVENQ_BROKER_AUTO_CREATE="false").auto_create is False


def test_an_empty_text_means_none_where_none_is_allowed() -> None:
    assert settings(EVENQ_BROKER_STORE__PATH="").store.path is None


@pytest.mark.parametrize(
    ("argv", "environ", "hint"),
    [
        (["--prot", "1"], {}, "unknown flag --prot; did you mean --port?"),
        (["--store.segment-byte=1"], {}, "did you mean --store.segment-bytes?"),
        (["stray"], {}, "unknown flag stray"),
        (["--no-port"], {}, "unknown flag --no-port"),
        ([], {"EVENQ_BROKER_HOSTS": "x"}, "EVENQ_BROKER_HOSTS; did you mean EVENQ_BROKER_HOST?"),
        ([], {"EVENQ_BROKER_STORE__SEGMENT": "1"}, "did you mean EVENQ_BROKER_STORE__SEGMENT_BYTES?"),
        (["--port"], {}, "flag --port needs a value"),
    ],
)
def test_what_is_not_known_is_refused_with_the_nearest_name(
    argv: list[str], environ: dict[str, str], hint: str
) -> None:
    with pytest.raises(SettingsError) as caught:
        settings(*argv, **environ)
    assert hint in caught.value.message


@pytest.mark.parametrize(
    ("argv", "environ", "parts"),
    [
        (["--port", "70000"], {}, ["--port = '70000'", "-1 .. 65535"]),
        (["--store.segment-bytes=1"], {}, ["--store.segment-bytes = '1'", "4096 .. 1073741824"]),
        ([], {"EVENQ_BROKER_PORT": "many"}, ["EVENQ_BROKER_PORT = 'many'", "integer"]),
        (["--log-level=LOUD"], {}, ["--log-level = 'LOUD'", "DEBUG, INFO"]),
    ],
)
def test_a_value_out_of_bounds_names_setting_value_and_bound(
    argv: list[str], environ: dict[str, str], parts: list[str]
) -> None:
    with pytest.raises(SettingsError) as caught:
        settings(*argv, **environ)
    for part in parts:
        assert part in caught.value.message


def test_variables_that_kubernetes_makes_for_services_are_nobodys_mistake() -> None:
    made = {
        "EVENQ_BROKER_SERVICE_HOST": "10.0.0.1",
        "EVENQ_BROKER_SERVICE_PORT": "8081",
        "EVENQ_BROKER_SERVICE_PORT_GRPC": "8081",
        "EVENQ_BROKER_PORT": "tcp://10.0.0.1:8081",
        "EVENQ_BROKER_PORT_8081_TCP": "tcp://10.0.0.1:8081",
        "EVENQ_BROKER_PORT_8081_TCP_ADDR": "10.0.0.1",
        "EVENQ_BROKER_PORT_8081_TCP_PROTO": "tcp",
    }
    assert settings(**made) == Settings()


def test_help_has_a_line_for_each_setting_with_unit_bound_and_default() -> None:
    with pytest.raises(HelpWanted) as caught:
        settings("--help")
    text = str(caught.value)
    assert "--store.segment-bytes" in text
    assert "Size of one file, bytes. [4096 .. 1073741824; default 1048576]" in text
    assert "--[no-]auto-create" in text
    assert "[-1 .. 65535; default 5557]" in text
    assert "EVENQ_BROKER_AUTO_CREATE" in text
