"""The range of versions of FastStream, and the names of its internals that this package derives from."""

from __future__ import annotations

import inspect
from importlib import import_module, metadata

import pytest

from evenq.errors import Unsupported
from evenq.faststream import supported
from evenq.faststream.supported import check_faststream


@pytest.mark.parametrize("version", ["0.7.6", "0.7.8", "0.7.99", "0.7.8.post1", "0.7.8rc1"])
def test_versions_of_the_range_are_accepted(version: str) -> None:
    check_faststream(version)
    check_faststream()


@pytest.mark.parametrize("version", ["0.5.48", "0.6.7", "0.7.5", "0.8.0", "0.8.0rc1", "1.0", "1.0.0a1", "unknown"])
def test_other_versions_are_refused_with_the_range(version: str) -> None:
    with pytest.raises(Unsupported, match=r"faststream 0\.7\.6 and later below 0\.8, and .* is installed: pip install"):
        check_faststream(version)


def test_without_faststream_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(supported, "version", missing)
    with pytest.raises(Unsupported, match=r'pip install "evenq\[faststream\]"'):
        check_faststream()


ABSTRACT = {
    "faststream._internal.broker.broker.BrokerUsecase": {"_connect", "ping", "publish", "request"},
    "faststream._internal.endpoint.subscriber.usecase.SubscriberUsecase": {
        "__aiter__", "_make_response_publisher", "get_one", "stop",
    },
    "faststream._internal.endpoint.publisher.proto.PublisherProto": {"_publish", "publish", "request"},
    "faststream._internal.endpoint.publisher.fake.FakePublisher": {"patch_command"},
    "faststream._internal.producer.ProducerProto": {"publish", "publish_batch", "request"},
    "faststream._internal.testing.broker.TestBroker": {"_fake_connect", "create_publisher_fake_subscriber"},
}  # fmt: skip


@pytest.mark.parametrize("path", ABSTRACT)
def test_the_methods_that_a_broker_of_faststream_must_define_are_those_that_are_defined_here(path: str) -> None:
    """A new release that asks for more fails here, with the name, and not in the middle of a program."""
    module, _, name = path.rpartition(".")
    found = {
        method
        for method, value in inspect.getmembers(getattr(import_module(module), name))
        if getattr(value, "__isabstractmethod__", False)
    }
    assert found - {"subscriber", "publisher"} == ABSTRACT[path]
