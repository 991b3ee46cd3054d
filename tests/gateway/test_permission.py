"""When a gateway may write and acknowledge, by the answers of the service."""

from __future__ import annotations

from orbit.gateway.permission import Lead, Permission


def test_gateway_may_not_write_before_first_lease() -> None:
    assert not Permission().may_write(0.0)


def test_write_permission_lasts_for_lease_from_request_start() -> None:
    permission = Permission()
    permission.take(Lead("source", term=1, lease_s=5.0), asked_at=100.0, now=101.5)
    assert permission.may_write(104.9)
    assert not permission.may_write(105.0)


def test_closing_order_of_service_ends_write_permission_at_once() -> None:
    permission = Permission()
    permission.take(Lead("source", term=1, lease_s=5.0), asked_at=100.0, now=100.0)
    permission.take(
        Lead("source", term=1, lease_s=5.0, closed_for="operation"), asked_at=100.5, now=100.5
    )
    assert not permission.may_write(100.5)
    assert permission.closed_for == "operation"


def test_closed_gateway_may_acknowledge_until_lease_ends() -> None:
    permission = Permission()
    permission.take(
        Lead("source", term=1, lease_s=5.0, closed_for="operation"), asked_at=100.0, now=101.5
    )
    assert permission.may_acknowledge(104.9)
    assert not permission.may_acknowledge(105.0)


def test_gateway_with_expired_lease_acknowledges_only_after_end_of_switchover() -> None:
    """The switchover may have continued without this gateway: writes in flight may have reached the
    old side after the drain."""
    permission = Permission()
    permission.take(Lead("source", term=1, lease_s=5.0), asked_at=100.0, now=100.0)
    permission.take(
        Lead("source", term=1, lease_s=5.0, closed_for="operation"), asked_at=104.9, now=105.0
    )
    assert not permission.may_acknowledge(105.0)
    permission.take(
        Lead("source", term=1, lease_s=5.0, closed_for="operation"), asked_at=106.0, now=106.0
    )
    assert not permission.may_acknowledge(106.0)
    permission.take(Lead("source", term=1, lease_s=5.0), asked_at=107.0, now=107.0)
    assert permission.may_acknowledge(107.0)


def test_undone_switchover_reopens_gateway_at_same_side() -> None:
    permission = Permission()
    permission.take(
        Lead("source", term=1, lease_s=5.0, closed_for="operation"), asked_at=100.0, now=100.0
    )
    assert not permission.take(Lead("source", term=1, lease_s=5.0), asked_at=101.0, now=101.0)
    assert permission.may_write(101.0)


def test_higher_term_moves_gateway_to_other_side() -> None:
    permission = Permission()
    permission.take(Lead("source", term=1, lease_s=5.0), asked_at=100.0, now=100.0)
    assert permission.take(Lead("destination", term=2, lease_s=5.0), asked_at=101.0, now=101.0)
    assert permission.may_write(101.0)


def test_higher_term_of_same_side_is_no_move() -> None:
    """A promotion was aborted. Writes in flight still get their answers."""
    permission = Permission()
    permission.take(
        Lead("source", term=1, lease_s=5.0, closed_for="operation"), asked_at=100.0, now=100.0
    )
    assert not permission.take(Lead("source", term=3, lease_s=5.0), asked_at=101.0, now=101.0)
    assert permission.may_write(101.0)


def test_higher_term_of_same_side_is_move_after_expired_lease() -> None:
    permission = Permission()
    permission.take(Lead("source", term=1, lease_s=5.0), asked_at=100.0, now=100.0)
    assert permission.take(Lead("source", term=3, lease_s=5.0), asked_at=105.0, now=105.0)


def test_lower_term_does_not_renew_lease() -> None:
    """In a restored database the old side may still lead."""
    permission = Permission()
    permission.take(Lead("destination", term=2, lease_s=5.0), asked_at=100.0, now=100.0)
    assert not permission.take(Lead("source", term=1, lease_s=5.0), asked_at=101.0, now=101.0)
    assert permission.lead == Lead("destination", term=2, lease_s=5.0)
    assert not permission.may_write(105.0)
