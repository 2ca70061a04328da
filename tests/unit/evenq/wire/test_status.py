"""The table between errors and codes."""

import ast
import inspect
from pathlib import Path

import pytest

from evenq import errors
from evenq.wire.status import CLASS_OF_CODE, INTERNAL, NEVER_SENT, RUST_KNOWS, check, error_of, status_of
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2

ALL_ERRORS = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, errors.Error)]


def test_each_code_of_the_proto_has_a_class_or_is_never_sent() -> None:
    assert set(CLASS_OF_CODE) | NEVER_SENT == set(definition_pb2.Code.values())
    assert not set(CLASS_OF_CODE) & NEVER_SENT


def test_each_error_class_has_a_code_of_the_proto_that_leads_back_to_it_or_to_its_kind() -> None:
    for kind in ALL_ERRORS:
        assert kind.code in CLASS_OF_CODE, kind
    for code, kind in CLASS_OF_CODE.items():
        assert kind.code == code
        assert type(error_of(code, "why")) is kind


def test_a_call_is_repeated_only_where_time_alone_may_change_its_answer() -> None:
    """Servers that stop, elect, are full or late. A missing thing and a refused request need a change by somebody."""
    retryable = {
        errors.RequestTimeout, errors.TooManyRequests, errors.InternalError, errors.HaNotAvailable,
        errors.PersistenceTimeout, errors.StoreFull, errors.ConnectionFailed, errors.TlsFailed,
    }  # fmt: skip
    renewed = {
        errors.TopicNotFound, errors.PreconditionFailed, errors.QueueReplaced, errors.DuplicateClientId,
        errors.HaNotAvailable, errors.ConnectionFailed, errors.TlsFailed,
    }  # fmt: skip
    assert {kind for kind in ALL_ERRORS if kind.retryable} == retryable
    assert {kind for kind in ALL_ERRORS if kind.refresh_route} == renewed


def test_the_numbers_of_errors_stand_in_their_tables_alone() -> None:
    root = Path(errors.__file__).parent.parent.parent
    tables = {"src/evenq/errors.py", "src/evenq/wire/status.py"}
    numbers = {kind.code for kind in ALL_ERRORS} - {40_000}  # 40,000 is a usual number of other things, too
    result = [
        f"{path}:{node.lineno}: {node.value}"
        for top in ("src/evenq", "services", "spark")
        for path in sorted((root / top).rglob("*.py"))
        if "stubs" not in path.parts and path.relative_to(root).as_posix() not in tables
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and type(node.value) is int and node.value in numbers
    ]
    assert result == [], "write SomeError.code"


def test_the_sentence_and_code_survive_both_ways() -> None:
    status = status_of(errors.TopicNotFound("topic 'a' is not here"))
    assert (status.code, status.message) == (40402, "topic 'a' is not here")
    back = error_of(status.code, status.message)
    assert isinstance(back, errors.TopicNotFound)
    assert back.message == "topic 'a' is not here"


@pytest.mark.parametrize("code", sorted(RUST_KNOWS))
def test_rust_gets_an_older_code_of_the_same_family(code: int) -> None:
    kind = CLASS_OF_CODE.get(code)
    if kind is None:
        assert code in NEVER_SENT
        return
    error = error_of(code, "why")
    assert status_of(error, "RUST").code == RUST_KNOWS[code]
    assert status_of(error, "JAVA").code == code
    assert RUST_KNOWS[code] not in RUST_KNOWS


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (40018, errors.BadRequest),
        (40499, errors.NotFound),
        (42903, errors.TooManyRequests),
        (50402, errors.PersistenceTimeout),
        (50501, errors.Unsupported),
        (60000, errors.InternalError),
        (0, errors.InternalError),
    ],
)
def test_a_code_without_class_becomes_its_family_and_is_named(code: int, kind: type[errors.Error]) -> None:
    error = error_of(code, "why")
    assert type(error) is kind
    assert str(code) in error.message


def test_check_raises_for_errors_only() -> None:
    check(definition_pb2.Status(code=definition_pb2.OK))
    check(definition_pb2.Status(code=definition_pb2.MULTIPLE_RESULTS))
    with pytest.raises(errors.Forbidden, match="no"):
        check(definition_pb2.Status(code=definition_pb2.FORBIDDEN, message="no"))


def test_errors_that_name_files_are_listed_as_internal() -> None:
    assert errors.StoreCorrupted in INTERNAL
    assert errors.StoreFull not in INTERNAL


@pytest.mark.parametrize("language", ["DOTNET", "HTTP"])
def test_a_lite_topic_that_cannot_be_is_a_bad_request_to_those_who_do_not_know_the_code(language: str) -> None:
    assert status_of(errors.IllegalLiteTopic("why"), language).code == errors.BadRequest.code
    assert status_of(errors.LiteTopicQuotaExceeded("why"), language).code == 42901
