"""A JSON body gives the values that Python reads, or null and a reason; its neighbours do not matter."""

from __future__ import annotations

import base64
import json
import tracemalloc
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenq.tables.typed import bodies as module
from evenq.tables.typed.columns import TypedSchema
from evenq.tables.typed.json_bodies import DEPTH_MAX, VALUES_MAX
from tests.unit.evenq.tables.typed.conversion import reasons, rows, schema_of, table

TYPES: dict[str, Any] = {
    "string": {"type": "string"},
    "int32": {"type": "integer", "format": "int32"},
    "int64": {"type": "integer"},
    "float64": {"type": "number"},
    "float32": {"type": "number", "format": "float"},
    "bool": {"type": "boolean"},
    "money": {"type": "number", "format": "decimal(6,2)"},
    "iso": {"type": "string", "format": "date-time"},
    "day": {"type": "string", "format": "date"},
    "ms": {"type": "integer", "format": "epoch-ms"},
    "bytes": {"type": "string", "contentEncoding": "base64"},
}


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        ("string", '"caf\\u00e9 \\ud83d\\ude00"', "café \U0001f600"),
        ("string", '"a\\u0000b"', "a\0b"),
        ("string", "7", "type"),
        ("string", '"\\ud800"', "utf8"),
        ("int32", "2147483647", 2147483647),
        ("int32", "-2147483649", "range"),
        ("int64", "-9223372036854775808", -9223372036854775808),
        ("int64", "9223372036854775808", "range"),
        ("int64", "9" * 5_000, "range"),
        ("int64", "1.0", 1),
        ("int64", "1e3", 1000),
        ("int64", "1.5", "type"),
        ("int64", "9007199254740991.0", 2**53 - 1),
        ("int64", "-9007199254740991.0", 1 - 2**53),
        ("int64", "9007199254740993.0", "range"),
        ("int64", "1e19", "range"),
        ("int64", "1e999", "range"),
        ("int64", "true", "type"),
        ("int64", '"1"', "type"),
        ("float64", "3", 3.0),
        ("float64", "0.1", 0.1),
        ("float64", "1e999", "range"),
        ("float64", "9" * 5_000, "range"),
        ("float64", "true", "type"),
        ("float64", "1e-99999999999999999999999", 0.0),
        ("float32", "0.1", 0.10000000149011612),
        ("float32", "1e39", "range"),
        ("bool", "false", False),
        ("bool", "0", "type"),
        ("money", "12.5", Decimal("12.50")),
        ("money", "-9999.99", Decimal("-9999.99")),
        ("money", "10000", "range"),
        ("money", "0.001", "range"),
        ("money", "1.10e1", Decimal("11.00")),
        ("money", '"7.25"', Decimal("7.25")),
        ("money", '"NaN"', "type"),
        ("money", '"1_0"', "type"),
        ("money", "1e999999999999999999999", "range"),
        ("money", "9" * 5_000, "range"),
        ("money", "0." + "1" * 100_000, "range"),
        ("money", "true", "type"),
        ("iso", '"2026-01-31T12:00:00Z"', datetime(2026, 1, 31, 12, tzinfo=UTC)),
        ("iso", '"2026-01-31t12:00:00.1234569+02:30"', datetime(2026, 1, 31, 9, 30, 0, 123456, tzinfo=UTC)),
        ("iso", '"2026-01-31 12:00:00"', datetime(2026, 1, 31, 12, tzinfo=UTC)),
        ("iso", '"2026-02-30T12:00:00Z"', "range"),
        ("iso", '"2026-01-31T12:00:00+24:00"', "range"),
        ("iso", '"0001-01-01T00:00:00+00:01"', "range"),
        ("iso", '"2026-01-31"', "type"),
        ("iso", '"٢٠٢٦-01-31T12:00:00Z"', "type"),
        ("iso", "1700000000", "type"),
        ("day", '"2026-02-28"', date(2026, 2, 28)),
        ("day", '"2026-02-29"', "range"),
        ("day", '"2026-02-28T00:00:00Z"', "type"),
        ("ms", "1700000000123", datetime(2023, 11, 14, 22, 13, 20, 123000, tzinfo=UTC)),
        ("ms", "1.5", datetime(1970, 1, 1, 0, 0, 0, 1500, tzinfo=UTC)),
        ("ms", "9" * 20, "range"),
        ("ms", "1e300", "range"),
        ("ms", '"1"', "type"),
        ("bytes", '"aGk="', b"hi"),
        ("bytes", '"aGk"', "type"),
        ("bytes", '"aG\\u00e9="', "type"),
        ("bytes", "1", "type"),
    ],
)  # fmt: skip
def test_values(kind: str, text: str, expected: Any) -> None:
    [row] = rows(schema_of(it=TYPES[kind]), [b'{"it":%s}' % text.encode()])
    if isinstance(expected, str) and expected in {"type", "range", "utf8"}:
        assert row == {"it": None, "bodyError": f"{expected}:it"}
    else:
        assert row == {"it": expected, "bodyError": None}
        assert isinstance(row["it"], type(expected))


@pytest.mark.parametrize(
    ("unit", "value", "micros"),
    [("s", 1, 1_000_000), ("s", 1.5, 1_500_000), ("s", -0.25, -250_000), ("us", 7, 7), ("ns", 1_999, 1), ("ns", -1, -1)],
)  # fmt: skip
def test_units_of_time(unit: str, value: float, micros: int) -> None:
    [row] = rows(schema_of(it={"type": "number", "format": f"epoch-{unit}"}), [b'{"it":%s}' % str(value).encode()])
    assert row["it"] == datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)


def test_absent_fields_and_null_are_null_and_fit() -> None:
    schema = schema_of(
        a=TYPES["string"],
        s={"properties": {"x": {"properties": {"y": TYPES["int64"]}}, "z": TYPES["bool"] | {"x-column": "z"}}},
        l={"items": TYPES["int64"]},
        m={"type": "object", "additionalProperties": TYPES["int64"]},
    )
    assert rows(schema, [b"{}", b'{"a":null,"s":null,"l":null,"m":null}', b'{"s":{"x":{}},"l":[null,1],"m":{"k":null}}']) == [
        {"a": None, "s": None, "l": None, "m": None, "z": None, "bodyError": None},
        {"a": None, "s": None, "l": None, "m": None, "z": None, "bodyError": None},
        {"a": None, "s": {"x": {"y": None}}, "l": [None, 1], "m": [("k", None)], "z": None, "bodyError": None},
    ]  # fmt: skip


def test_reasons_of_whole_bodies_and_of_nested_values() -> None:
    schema = schema_of(
        s={"properties": {"n": TYPES["int32"], "deep": TYPES["int32"] | {"x-column": "deep"}}},
        l={"items": {"properties": {"n": TYPES["int32"]}}},
        m={"type": "object", "additionalProperties": TYPES["int32"]},
    )
    assert reasons(
        schema, b"", b" ", b"\xff", b"\xef\xbb\xbf{}", b"{", b"[]", b"null", b"7", b"NaN", b'{"x":NaN}', b'{"x":-Infinity}', b"{}{}",
        b'{"a":01}', b"{'a':1}", b'{"a":"\n"}', b'{"s":[]}', b'{"s":{"n":"x"}}', b'{"s":{"deep":[]}}', b'{"l":{}}', b'{"l":[1]}',
        b'{"l":[{"n":1},{"n":true}]}', b'{"m":[]}', b'{"m":{"a":1,"b":1e10}}', b'{"m":{"\\udfff":1}}',
    ) == [
        "empty", "syntax", "utf8", "syntax", "syntax", "type", "type", "type", "syntax", "syntax", "syntax", "syntax",
        "syntax", "syntax", "syntax", "type:deep", "type:s.n", "type:deep", "type:l", "type:l",
        "type:l.n", "type:m", "range:m", "utf8:m",
    ]  # fmt: skip


def test_of_two_values_with_one_name_the_last_one_counts() -> None:
    assert rows(schema_of(a=TYPES["int64"]), [b'{"a":"x","a":2}', b'{"a":2,"a":"x"}', b'{"a":{"a":1},"a":3}']) == [
        {"a": 2, "bodyError": None}, {"a": None, "bodyError": "type:a"}, {"a": 3, "bodyError": None}
    ]  # fmt: skip


SIMPLE = schema_of(a=TYPES["int64"], l={"items": {"properties": {"x": TYPES["int64"], "y": TYPES["string"]}}})


TIMED = schema_of(
    it=TYPES["money"], **{unit: {"type": "number", "format": f"epoch-{unit}"} for unit in ("s", "ms", "us", "ns")}
)
"""Numbers are read as they are written, because of the decimal."""


def nested(levels: int) -> bytes:
    return b'{"z":' + b"[" * (levels - 1) + b"]" * (levels - 1) + b',"a":1}'


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (nested(DEPTH_MAX), None),
        (nested(DEPTH_MAX + 1), "depth"),
        (nested(2_000_000), "size"),
        (b'{"z":' + b"[" * 100_000, "depth"),
        (b"[" * (4 << 20), "size"),
        (b'{"z":' * 800_000, "size"),
        (b'{"a":1,"z":[' + b"[]," * DEPTH_MAX + b"[]]}", None),
        (b'{"a":1,"z":"' + b"[{," * (1 << 20) + b'"}', None),
        (b'{"a":1,"z":"' + b'\\"[' * (1 << 20) + b'"}', None),
        (b'{"a":1,"z":"' + b"x" * (4 << 20) + b'"}', None),
        (b'{"a":1,"z":"' + b"x" * (4 << 20), "syntax"),
        (b'{"a":' + b"9" * (4 << 20) + b"}", "range:a"),
        (b'{"z":' + b"9" * (4 << 20) + b',"a":1}', None),
        (b'{"a":1,"z":[' + b"1," * (VALUES_MAX - 2) + b"1]}", "size"),
        (b'{"a":1,"z":[' + b"1," * (VALUES_MAX - 4) + b"1]}", None),
        (b'{"a":1,"l":[' + b"{}," * 124_000 + b"{}]}", None),
        (b'{"z":{' + b",".join(b'"%d":0' % n for n in range(400_000)) + b"}}", "size"),
        (b'{"a":1' + b',"a":1' * 240_000 + b"}", None),
        (b'"' + b'\\"' * (2 << 20), "syntax"),
        (b'"' * (4 << 20), "syntax"),
    ],
    ids=range(20),
)  # fmt: skip
def test_hostile_bodies_cost_bounded_memory_and_get_a_reason(body: bytes, reason: str | None) -> None:
    tracemalloc.start()
    try:
        [row] = rows(SIMPLE, [body])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert row["bodyError"] == reason
    assert reason is not None or row["a"] == 1
    assert peak < 48 << 20, f"{peak >> 20} MiB"


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_a_time_with_any_exponent_has_a_reason_beside_decimals(unit: str) -> None:
    texts = ["1e1000000", "-1e1000000", "1e999999999999999999999", "1e-9999999"]
    found = rows(TIMED, [b'{"%s":%s}' % (unit.encode(), text.encode()) for text in texts])
    assert [row["bodyError"] for row in found] == [f"range:{unit}"] * 3 + [None]
    assert found[3][unit] == datetime(1970, 1, 1, tzinfo=UTC)


NUMBERS = st.tuples(st.decimals(-100, 100, allow_nan=False, places=2), st.integers(-(10**7), 10**7))


@given(st.lists(st.tuples(st.sampled_from(["it", "s", "ms", "us", "ns"]), NUMBERS), max_size=8))
def test_each_number_fits_or_has_a_reason_whatever_its_exponent(numbers: list[Any]) -> None:
    bodies = [f'{{"{name}":{digits}e{exponent}}}'.encode() for name, (digits, exponent) in numbers]
    for (name, (digits, exponent)), reason in zip(numbers, reasons(TIMED, *bodies), strict=True):
        assert reason in {None, f"range:{name}"}
        assert reason is not None or not digits or exponent < 20


@pytest.mark.parametrize("error", [ArithmeticError, ValueError, TypeError])
def test_an_error_that_no_converter_expects_is_a_reason_too(error: type[Exception]) -> None:
    converter = module.TypedBodies(SIMPLE, plain=pa.schema([pa.field("body", pa.binary())]))
    original = converter._parser.values

    def values(body: memoryview) -> list[Any]:
        if bytes(body) == b"{}":
            raise error
        return original(body)

    converter._parser.values = values  # type: ignore[method-assign]
    [piece] = converter.batches(pa.record_batch({"body": pa.array([b'{"a":1}', b"{}", b'{"a":3}'])}))
    assert piece.column("a").to_pylist() == [1, None, 3]
    assert piece.column("bodyError").to_pylist() == [None, "type", None]


def test_a_body_that_would_add_too_many_values_is_refused() -> None:
    wide = {"properties": {f"c{n}": TYPES["int64"] for n in range(50)}}
    schema = schema_of(l={"items": wide}, n={"items": {"items": wide}})
    body = b'{"l":[' + b"{}," * 10_000 + b"{}]}"
    nest = b'{"n":[' + b",".join([b"[" + b",".join([b"{}"] * 99) + b"]"] * 101) + b"]}"
    assert reasons(schema, body, nest, b"{}") == ["size:l", "size:n", None]


# Python's own reading, written again from the standard library.
def read(kind: str, value: Any) -> Any:
    """Returns the value that a column of a type has; raises for one that does not fit."""
    if value is None:
        return None
    match kind:
        case "string":
            assert isinstance(value, str)
            value.encode()
        case "int32" | "int64":
            assert isinstance(value, int | float)
            assert not isinstance(value, bool)
            assert value == int(value)
            assert isinstance(value, int) or abs(value) < 2**53
            value = int(value)
            assert abs(value + 0.5) < (2**31 if kind == "int32" else 2**63)
        case "float64":
            assert isinstance(value, int | float)
            assert not isinstance(value, bool)
            value = float(value)
            assert abs(value) != float("inf")
        case "bool":
            assert isinstance(value, bool)
        case "iso":
            assert isinstance(value, str)
            assert len(value) >= 19
            assert "T" in value
            value = datetime.fromisoformat(value)
            value = value.replace(tzinfo=value.tzinfo or UTC).astimezone(UTC)
        case "day":
            assert isinstance(value, str)
            value = date.fromisoformat(value)
        case "ms":
            assert type(value) is int
            value = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=value)
        case "bytes":
            assert isinstance(value, str)
            value = base64.b64decode(value, validate=True)
    return value


READ = ["string", "int32", "int64", "float64", "bool", "iso", "day", "ms", "bytes"]
SCHEMA = schema_of(
    **{kind: TYPES[kind] for kind in READ},
    s={"properties": {"i": TYPES["int32"], "t": TYPES["string"]}},
    l={"items": TYPES["int64"]},
)
SCALARS = (
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.integers(-3, 3) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(), max_size=8) | st.datetimes().map(datetime.isoformat) | st.dates().map(date.isoformat)
    | st.datetimes(timezones=st.sampled_from([UTC])).map(datetime.isoformat)
    | st.binary(max_size=8).map(lambda data: base64.b64encode(data).decode())
)  # fmt: skip
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ita"), inner, max_size=3)
)
DOCUMENTS = st.dictionaries(st.sampled_from([*READ, "s", "l", "other"]), VALUES, max_size=4) | VALUES
BODIES = DOCUMENTS.map(lambda one: json.dumps(one, ensure_ascii=True).encode()) | st.binary(max_size=12)


def expected(body: bytes) -> dict[str, Any] | None:
    """Returns Python's reading of a body; None if it does not fit."""
    try:
        parsed = json.loads(body.decode(), parse_constant=lambda _: 1 / 0)
        assert isinstance(parsed, dict)
        made = {kind: read(kind, parsed.get(kind)) for kind in READ}
        struct, numbers = parsed.get("s"), parsed.get("l")
        assert struct is None or isinstance(struct, dict)
        assert numbers is None or isinstance(numbers, list)
        made["s"] = struct and {"i": read("int32", struct.get("i")), "t": read("string", struct.get("t"))}
        made["s"] = {"i": None, "t": None} if struct == {} else made["s"]
        made["l"] = numbers and [read("int64", one) for one in numbers]
    except (ValueError, AssertionError, OverflowError, ArithmeticError):
        return None
    return made | {"bodyError": None}


@given(st.lists(BODIES, max_size=8))
def test_each_body_is_read_as_python_reads_it_or_has_a_reason(bodies: list[bytes]) -> None:
    for body, row in zip(bodies, rows(SCHEMA, bodies), strict=True):
        wanted = expected(body)
        if wanted is None:
            assert row.pop("bodyError"), body
            assert set(row.values()) == {None}
        else:
            assert row == wanted, body


@given(st.lists(BODIES, min_size=2, max_size=8), st.integers(1, 40), st.integers(1, 40))
def test_a_body_has_the_same_values_beside_any_others(bodies: list[bytes], size: int, cells: int) -> None:
    """A second exporter gets other blocks: pieces of any size give the rows that each body gives alone."""
    whole = table(SCHEMA, bodies)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "PIECE_BYTES", size)
        patch.setattr(module, "PIECE_CELLS", cells)
        assert table(SCHEMA, bodies).combine_chunks().equals(whole.combine_chunks())
    alone = pa.concat_tables([table(SCHEMA, [body]) for body in bodies])
    assert alone.combine_chunks().equals(whole.combine_chunks())


def test_a_slice_of_a_batch_reads_its_own_bodies() -> None:
    converter = module.TypedBodies(
        TypedSchema(columns=SIMPLE.columns), plain=pa.schema([pa.field("body", pa.binary())])
    )
    batch = pa.record_batch({"body": pa.array([b'{"a":%d}' % n for n in range(10)])}).slice(4, 3)
    [piece] = converter.batches(batch)
    assert piece.column("a").to_pylist() == [4, 5, 6]
