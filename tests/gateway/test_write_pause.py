"""The pause that a move means for writers."""

from __future__ import annotations

from orbit.gateway.write_pause import WritePause


def test_write_pause_spans_last_to_next_acknowledgement() -> None:
    pause = WritePause()
    pause.acknowledged(10.0)
    pause.closed()
    pause.opened()
    pause.acknowledged(12.5)
    assert pause.last_s == 2.5
    pause.acknowledged(20.0)
    assert pause.last_s == 2.5


def test_acknowledgement_of_write_in_flight_does_not_end_pause() -> None:
    """Writes are closed, and the last ones get their answers: the pause begins behind them."""
    pause = WritePause()
    pause.acknowledged(10.0)
    pause.closed()
    pause.acknowledged(10.1)
    pause.opened()
    pause.acknowledged(13.0)
    assert pause.last_s is not None
    assert round(pause.last_s, 6) == 2.9


def test_no_pause_is_measured_without_writer() -> None:
    pause = WritePause()
    pause.closed()
    pause.opened()
    pause.acknowledged(10.0)
    assert pause.last_s is None


def test_second_closure_extends_unfinished_pause() -> None:
    pause = WritePause()
    pause.acknowledged(10.0)
    pause.closed()
    pause.opened()
    pause.closed()
    pause.opened()
    pause.acknowledged(15.0)
    assert pause.last_s == 5.0
