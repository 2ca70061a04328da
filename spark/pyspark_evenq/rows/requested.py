"""The columns that a read may have, by its options, and those that it requests.

Called by the source, which checks the columns of `.schema(...)`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from evenq.columns.arrow_schema import HEADER_TYPES, KAFKA_TYPES, SYSTEM_TYPES, TYPES, OutputColumn, ddl
from evenq.errors import SettingsError
from pyspark_evenq.options.source import ReadOptions, SchemaStyle

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


def types_of(options: ReadOptions) -> dict[str, str]:
    if options.schema_style is SchemaStyle.KAFKA:
        return KAFKA_TYPES | (HEADER_TYPES if options.include_headers else {})
    return TYPES | (SYSTEM_TYPES if options.include_system else {})


def columns(schema: StructType, types: Mapping[str, str] = TYPES) -> tuple[OutputColumn, ...]:
    """Returns the columns of a user's schema. Raises SettingsError for a column that the source does not have."""
    for field in schema.fields:
        kind = field.dataType.simpleString()
        if field.name not in types:
            raise SettingsError(f"the evenq source has no column {field.name!r}; its columns are: {ddl(types)}")
        if kind != types[field.name]:
            raise SettingsError(f"column {field.name} is {types[field.name]}, not {kind}; cast it after loading")
    return tuple(OutputColumn(field.name, field.nullable) for field in schema.fields)
