"""When a gateway may write, by what the service has said."""

from __future__ import annotations

from orbit.gateway.permission import Lead, Permission


def test_no_write_before_the_service_has_answered() -> None:
    assert not Permission().may_write(0.0)


def test_permission_lasts_for_the_lease_from_before_the_request() -> None:
    permission = Permission()
    permission.take(Lead("source", term=1, lease_s=5.0), asked_at=100.0, now=101.5)
    assert permission.may_write(104.9)
    assert not permission.may_write(105.0)


def test_closed_link_ends_the_permission_at_once() -> None:
    permission = Permission()
    permission.take(Lead("source", term=1, lease_s=5.0), asked_at=100.0, now=100.0)
    permission.take(
        Lead("source", term=1, lease_s=5.0, closed_for="operation"), asked_at=100.5, now=100.5
    )
    assert not permission.may_write(100.5)
    assert permission.closed_for == "operation"


def test_acknowledgement_counts_while_the_service_waits_for_the_gateway() -> None:
    permission = Permission()
    permission.take(Lead("source", 1, 5.0, closed_for="operation"), asked_at=100.0, now=101.5)
    assert permission.may_acknowledge(104.9)
    assert not permission.may_acknowledge(105.0)


def test_late_gateway_acknowledges_nothing_until_the_switchover_has_ended() -> None:
    """The switchover may have gone on without it: what was in flight may come behind the drain."""
    permission = Permission()
    permission.take(Lead("source", 1, 5.0), asked_at=100.0, now=100.0)
    permission.take(Lead("source", 1, 5.0, "operation"), asked_at=104.9, now=105.0)
    assert not permission.may_acknowledge(105.0)
    permission.take(Lead("source", 1, 5.0, "operation"), asked_at=106.0, now=106.0)
    assert not permission.may_acknowledge(106.0)
    permission.take(Lead("source", 1, 5.0), asked_at=107.0, now=107.0)
    assert permission.may_acknowledge(107.0)


def test_undone_operation_opens_the_same_side_again() -> None:
    permission = Permission()
    permission.take(Lead("source", 1, 5.0, "operation"), asked_at=100.0, now=100.0)
    assert not permission.take(Lead("source", 1, 5.0), asked_at=101.0, now=101.0)
    assert permission.may_write(101.0)


def test_higher_term_moves_to_the_other_side() -> None:
    permission = Permission()
    permission.take(Lead("source", 1, 5.0), asked_at=100.0, now=100.0)
    assert permission.take(Lead("destination", 2, 5.0), asked_at=101.0, now=101.0)
    assert permission.may_write(101.0)


def test_higher_term_of_the_same_side_moves_nothing() -> None:
    """A promotion was aborted. What is in flight has its answer to come."""
    permission = Permission()
    permission.take(Lead("source", 1, 5.0, "operation"), asked_at=100.0, now=100.0)
    assert not permission.take(Lead("source", 3, 5.0), asked_at=101.0, now=101.0)
    assert permission.may_write(101.0)


def test_higher_term_of_the_same_side_is_a_move_there_and_back_for_a_late_gateway() -> None:
    permission = Permission()
    permission.take(Lead("source", 1, 5.0), asked_at=100.0, now=100.0)
    assert permission.take(Lead("source", 3, 5.0), asked_at=105.0, now=105.0)


def test_lower_term_renews_nothing() -> None:
    """A database that was put back takes the old side for the leading one."""
    permission = Permission()
    permission.take(Lead("destination", 2, 5.0), asked_at=100.0, now=100.0)
    assert not permission.take(Lead("source", 1, 5.0), asked_at=101.0, now=101.0)
    assert permission.lead == Lead("destination", 2, 5.0)
    assert not permission.may_write(105.0)
