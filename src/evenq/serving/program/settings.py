"""Settings of a program: one pydantic class, filled from flags over environment over defaults.

`load` walks the class: a field `store.segment_bytes` of the broker is the flag `--store.segment-bytes` and the variable
`EVENQ_BROKER_STORE__SEGMENT_BYTES`. An unknown name is rejected with the nearest known one; a value out of bounds with
its name, the value and the bound. `help_text` is the output of `--help`. Nothing else reads the environment.
"""

from __future__ import annotations

import difflib
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, get_args, get_origin

from pydantic import BaseModel, Field, ValidationError
from pydantic.fields import FieldInfo

from evenq.errors import SettingsError
from evenq.serving.front_limits import FrontLimits
from evenq.serving.tls import TlsSettings

ModelT = TypeVar("ModelT", bound=BaseModel)


class ServerSettings(BaseModel, frozen=True, extra="forbid"):
    """Settings of every server."""

    host: str = Field(default="127.0.0.1", min_length=1, description="Address to listen on.")
    port: int = Field(default=0, ge=-1, le=65_535, description="gRPC port without TLS; 0 = any free one, -1 = off.")
    front: Literal["grpcio", "http2"] = Field(
        default="http2", description="Server for gRPC: `http2` = evenq's own, `grpcio` = that of the grpcio library."
    )
    front_limits: FrontLimits = Field(
        default=FrontLimits(), description="Limits on what clients can make the server hold."
    )
    tls: TlsSettings = Field(default=TlsSettings(), description="Encryption.")
    advertise: str = Field(
        default="", description="Address for other servers and clients, `host:port`; empty = the address listened on."
    )
    metrics_port: int = Field(
        default=5557, ge=-1, le=65_535, description="HTTP port of metrics and health; 0 = any, -1 = off."
    )
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(
        default="INFO", description="Least severe level that is logged."
    )
    drain_ms: int = Field(
        default=10_000, ge=0, le=600_000, description="Longest time for running calls at shutdown, ms."
    )


class HelpWanted(Exception):
    """`--help` was among the flags; the text of the exception is the help."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting, with its names as flag, in the environment and on the reference page."""

    path: tuple[str, ...]
    """Field names from the outer class to the inner one."""
    field: FieldInfo

    @property
    def name(self) -> str:
        """`store.segment_bytes`."""
        return ".".join(self.path)

    @property
    def flag(self) -> str:
        """`--store.segment-bytes`."""
        return "--" + self.name.replace("_", "-")

    def variable(self, program: str) -> str:
        """`EVENQ_BROKER_STORE__SEGMENT_BYTES`."""
        return _prefix(program) + "__".join(self.path).upper()

    @property
    def is_switch(self) -> bool:
        """True for boolean settings: the bare flag means yes, `--no-...` means no."""
        return self.field.annotation is bool

    @property
    def default(self) -> str:
        """The default as text."""
        value = self.field.get_default(call_default_factory=True, validated_data={})
        return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)

    @property
    def bounds(self) -> str:
        """`1 .. 4096`, `one of async, sync`, or empty."""
        annotation = self.field.annotation
        if get_origin(annotation) is Literal:
            return "one of " + ", ".join(str(choice) for choice in get_args(annotation))
        low, high = "", ""
        for rule in self.field.metadata:
            low = next((str(getattr(rule, key)) for key in ("ge", "gt") if hasattr(rule, key)), low)
            high = next((str(getattr(rule, key)) for key in ("le", "lt") if hasattr(rule, key)), high)
        if low and high:
            return f"{low} .. {high}"
        return f"at least {low}" if low else f"at most {high}" if high else ""


def settings_of(kind: type[BaseModel], path: tuple[str, ...] = ()) -> Iterator[Setting]:
    """Yields all settings of a class and its inner classes, in order of the source."""
    for name, field in kind.model_fields.items():
        inner = _model_in(field.annotation)
        if inner is not None:
            yield from settings_of(inner, (*path, name))
        else:
            yield Setting(path=(*path, name), field=field)


def load(kind: type[ModelT], program: str, argv: Sequence[str], environ: Mapping[str, str]) -> ModelT:
    """Fills `kind`: flags in `argv` (without the program's name) over `environ` over defaults.

    Raises SettingsError (unknown name, missing value, out of bounds) and HelpWanted.
    """
    known = list(settings_of(kind))
    texts = _from_environment(known, program, environ) | _from_flags(known, program, argv, kind)
    nested: dict[str, Any] = {}
    for setting in known:
        if setting.name in texts:
            text, _ = texts[setting.name]
            inner = nested
            for part in setting.path[:-1]:
                inner = inner.setdefault(part, {})
            inner[setting.path[-1]] = None if text == "" and _may_be_none(setting.field.annotation) else text
    try:
        return kind.model_validate(nested)
    except ValidationError as error:
        raise SettingsError(_explain(error, known, texts)) from error


def help_text(kind: type[BaseModel], program: str) -> str:
    """Returns one line per setting: flag, meaning with unit, bounds, default; then the use of the environment."""
    known = list(settings_of(kind))
    flags = [f"--[no-]{setting.flag[2:]}" if setting.is_switch else setting.flag for setting in known]
    width = min(34, max(len(flag) for flag in flags))
    lines = [f"usage: evenq-{program} [--setting value]...", "", (kind.__doc__ or "").strip().splitlines()[0], ""]
    for flag, setting in zip(flags, known, strict=True):
        facts = [setting.bounds] if setting.bounds else []
        facts.append(f"default {setting.default or 'empty'}")
        lines.append(f"  {flag:<{width}}  {setting.field.description or ''} [{'; '.join(facts)}]")
    example = known[-1]
    lines += [
        "",
        f"Each can be an environment variable too, {example.flag} as {example.variable(program)}; a flag wins.",
    ]
    return "\n".join(lines)


_Texts = dict[str, tuple[str, str]]  # name of each setting: its text, and the source of that


def _from_environment(known: Sequence[Setting], program: str, environ: Mapping[str, str]) -> _Texts:
    by_variable = {setting.variable(program): setting.name for setting in known}
    texts: _Texts = {}
    for variable in sorted(environ):
        if not variable.startswith(_prefix(program)):
            continue
        if is_from_kubernetes(variable, environ):
            continue
        if variable not in by_variable:
            raise SettingsError(_unknown("environment variable", variable, list(by_variable), program))
        texts[by_variable[variable]] = (environ[variable], variable)
    return texts


def is_from_kubernetes(variable: str, environ: Mapping[str, str]) -> bool:
    """True for a variable that is not a mistake: for a Service `evenq-broker`, Kubernetes gives pods variables like
    EVENQ_BROKER_SERVICE_HOST and EVENQ_BROKER_PORT, whose value is a URL.
    """
    _, service, rest = variable.partition("_SERVICE_")
    if service and (rest == "HOST" or rest.startswith("PORT")):
        return True
    return "_PORT" in variable and (environ[variable].startswith(("tcp://", "udp://")) or "_TCP" in variable)


def _from_flags(known: Sequence[Setting], program: str, argv: Sequence[str], kind: type[BaseModel]) -> _Texts:
    by_flag = {setting.flag: setting for setting in known}
    texts: _Texts = {}
    words = iter(argv)
    for word in words:
        if word in {"-h", "--help"}:
            raise HelpWanted(help_text(kind, program))
        flag, equals, text = word.partition("=")
        flag = flag.replace("_", "-")
        setting = by_flag.get(flag)
        if setting is None and flag.startswith("--no-"):
            setting, text, equals = by_flag.get("--" + flag[5:]), "false", "="
            setting = setting if setting is not None and setting.is_switch else None
        if setting is None:
            raise SettingsError(_unknown("flag", word, list(by_flag), program))
        if not equals:
            value_text = "true" if setting.is_switch else next(words, None)
            if value_text is None:
                raise SettingsError(f"flag {flag} needs a value: {setting.field.description or ''} Try {flag} VALUE.")
            text = value_text
        texts[setting.name] = (text, flag)
    return texts


def _unknown(what: str, name: str, known: Sequence[str], program: str) -> str:
    near = difflib.get_close_matches(name.partition("=")[0], known, n=1, cutoff=0.0)
    hint = f"; did you mean {near[0]}?" if near else ""
    return f"unknown {what} {name.partition('=')[0]}{hint} (evenq-{program} --help lists all)"


def _explain(error: ValidationError, known: Sequence[Setting], texts: _Texts) -> str:
    sentences = []
    for problem in error.errors():
        name = ".".join(str(part) for part in problem["loc"])
        text, source = texts.get(name, ("", name))
        setting = next((setting for setting in known if setting.name == name), None)
        reason = problem["msg"].removeprefix("Value error, ")
        if setting is None or not name:
            sentences.append(reason)
        else:
            bounds = f"; allowed: {setting.bounds}" if setting.bounds else ""
            sentences.append(f"{source} = {text!r}: {reason[:1].lower()}{reason[1:]}{bounds}")
    return "; ".join(sentences)


def _prefix(program: str) -> str:
    return f"EVENQ_{program.upper().replace('-', '_')}_"


def _model_in(annotation: Any) -> type[BaseModel] | None:
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


def _may_be_none(annotation: Any) -> bool:
    return get_origin(annotation) in {types.UnionType, typing.Union} and type(None) in get_args(annotation)
