"""Which error a status of etcd is."""

from __future__ import annotations

import pytest
from evenq_broker.loops.coordinators.etcd_errors import AuthIsOff, TokenRefused, etcd_error

from evenq import errors


@pytest.mark.parametrize(
    ("status", "details", "kind", "words", "again"),
    [
        (16, "etcdserver: invalid auth token", TokenRefused, "log in again", False),
        (3, "etcdserver: revision of auth store is old", TokenRefused, "wants a login for Txn", False),
        (3, "etcdserver: user name is empty", TokenRefused, "give a user and a password", False),
        (3, "etcdserver: authentication failed, invalid user ID or password", errors.Unauthorized, "right ones", False),
        (9, "etcdserver: authentication is not enabled", AuthIsOff, "knows no users", False),
        (7, "etcdserver: permission denied", errors.Forbidden, "a role with read and write", False),
        (4, "Deadline Exceeded", errors.RequestTimeout, "may or may not have taken effect", True),
        (12, "", errors.Unsupported, "a client URL of etcd v3", False),
        (8, "etcdserver: mvcc: database space exceeded", errors.TooManyRequests, "etcdctl alarm disarm", True),
        (8, "Received message larger than max (9 vs. 4)", errors.PayloadTooLarge, "is it the right key", False),
        (8, "etcdserver: too many requests", errors.TooManyRequests, "overloaded", True),
        (14, "etcdserver: no leader", errors.ConnectionFailed, "no leader; see whether most", True),
        (14, "failed to connect", errors.ConnectionFailed, "no etcd answers at h:1", True),
        (15, "etcdserver: corrupt cluster", errors.InternalError, r"corrupt cluster (gRPC status 15)", True),
    ],
)
def test_statuses(status: int, details: str, kind: type[errors.Error], words: str, *, again: bool) -> None:
    error = etcd_error(status, details, (), address="h:1", method="/etcdserverpb.KV/Txn", timeout_ms=300)
    assert type(error) is kind
    assert words in error.message
    assert "h:1" in error.message
    assert error.retryable == again
