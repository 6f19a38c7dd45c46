"""Requests for node leases."""

from datetime import UTC, datetime

import pytest

from kwokfleet.kwok import node_leases

NOW = datetime(2026, 3, 2, 8, tzinfo=UTC)


def test_a_lease_is_deleted_only_in_the_version_that_was_read() -> None:
    """The request needs the UID and the version."""
    request = node_leases.release_request(node_leases.NodeLease("node", "dead", NOW, 40, "u", "1"))
    assert b'"resourceVersion":"1"' in (request.body or b"")
    with pytest.raises(ValueError, match="UID and version"):
        node_leases.release_request(node_leases.NodeLease("node", "x", NOW, 40))
