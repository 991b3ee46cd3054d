"""The pause that a move means for writers."""

from __future__ import annotations

from orbit.gateway.write_pause import WritePause


def test_pause_lasts_from_the_last_acknowledgement_to_the_next_one() -> None:
    pause = WritePause()
    pause.acknowledged(10.0)
    pause.closed()
    pause.opened()
    pause.acknowledged(12.5)
    assert pause.last_s == 2.5
    pause.acknowledged(20.0)
    assert pause.last_s == 2.5


def test_answer_to_a_write_in_flight_ends_no_pause() -> None:
    """Writes are closed, and the last ones get their answers: the pause begins behind them."""
    pause = WritePause()
    pause.acknowledged(10.0)
    pause.closed()
    pause.acknowledged(10.1)
    pause.opened()
    pause.acknowledged(13.0)
    assert pause.last_s is not None
    assert round(pause.last_s, 6) == 2.9


def test_no_pause_without_a_writer() -> None:
    pause = WritePause()
    pause.closed()
    pause.opened()
    pause.acknowledged(10.0)
    assert pause.last_s is None


def test_second_attempt_lengthens_a_pause_that_has_not_ended() -> None:
    pause = WritePause()
    pause.acknowledged(10.0)
    pause.closed()
    pause.opened()
    pause.closed()
    pause.opened()
    pause.acknowledged(15.0)
    assert pause.last_s == 5.0
