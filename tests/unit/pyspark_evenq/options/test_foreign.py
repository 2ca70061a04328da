"""Every option of Kafka's source and sink that means nothing here is an error that says what to give instead."""

from __future__ import annotations

import re

import pytest
from pyspark_evenq.options.foreign import FOREIGN, FOREIGN_SINK
from pyspark_evenq.options.sink import WriteOptions
from pyspark_evenq.options.source import ReadOptions

from evenq.errors import SettingsError


def spelt(name: str) -> str:
    """An option that the entry is about, in another case than it is listed."""
    return (name + "some.thing" if name.endswith(".") else name).upper()


@pytest.mark.parametrize("name", FOREIGN)
def test_an_option_of_kafkas_source_says_what_to_give_instead(name: str) -> None:
    with pytest.raises(SettingsError, match=re.escape(f"has no meaning for the evenq source; {FOREIGN[name]}")):
        ReadOptions.parse({"endpoints": "a:1", "subscribe": "t", spelt(name): "x"}, streaming=False)


@pytest.mark.parametrize("name", FOREIGN_SINK)
def test_an_option_of_kafkas_sink_says_what_to_give_instead(name: str) -> None:
    with pytest.raises(SettingsError, match=re.escape(f"has no meaning for the evenq sink; {FOREIGN_SINK[name]}")):
        WriteOptions.parse({"endpoints": "a:1", "topic": "t", spelt(name): "x"})
