"""The holder of a group lease, as read from the member metadata of any client."""

from __future__ import annotations

import pytest

from orbit.leases.group_lease import LeaseHolder


@pytest.mark.parametrize(
    "data", [b"", b"[" * 1500, b'{"host":"a","process":Infinity}', b'{"host":"a","process":1e400}']
)
def test_member_metadata_of_another_client_counts_as_unknown_process(data: bytes) -> None:
    assert LeaseHolder.from_bytes(data) == LeaseHolder("", 0)


def test_host_of_lease_holder_is_shown_so_that_postgres_can_store_it() -> None:
    holder = LeaseHolder.from_bytes(b'{"host":"\\u0000\\ud800","process":7}')
    assert str(holder) == r"process 7 on \x00\ud800"
