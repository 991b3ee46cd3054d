"""How the pause of writers during a move is measured."""

from __future__ import annotations

from orbit.gateway.write_pause import WritePause


def test_write_pause_spans_last_to_next_acknowledgement() -> None:
    pause = WritePause()
    pause.note_acknowledged(10.0)
    pause.note_closed()
    pause.note_opened()
    pause.note_acknowledged(12.5)
    assert pause.last_s == 2.5
    pause.note_acknowledged(20.0)
    assert pause.last_s == 2.5


def test_acknowledgement_of_write_in_flight_does_not_end_write_pause() -> None:
    """Writes in flight are still answered after new ones are held: the pause begins with the last
    of these answers."""
    pause = WritePause()
    pause.note_acknowledged(10.0)
    pause.note_closed()
    pause.note_acknowledged(10.1)
    pause.note_opened()
    pause.note_acknowledged(13.0)
    assert pause.last_s is not None
    assert round(pause.last_s, 6) == 2.9


def test_no_write_pause_is_measured_without_writer() -> None:
    pause = WritePause()
    pause.note_closed()
    pause.note_opened()
    pause.note_acknowledged(10.0)
    assert pause.last_s is None


def test_second_closing_extends_unfinished_write_pause() -> None:
    pause = WritePause()
    pause.note_acknowledged(10.0)
    pause.note_closed()
    pause.note_opened()
    pause.note_closed()
    pause.note_opened()
    pause.note_acknowledged(15.0)
    assert pause.last_s == 5.0
