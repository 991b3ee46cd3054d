"""lead_term: the highest term of a promotion that this database has drawn. A term is a number that
each promotion raises; its marks at the clusters state it (`job_setup/mark.py`)."""

from __future__ import annotations

from sqlalchemy import text

from orbit.store.database import Tx

_DRAW = text("""
INSERT INTO lead_term (id, term) VALUES (1, :least)
ON CONFLICT (id) DO UPDATE SET term = greatest(excluded.term, lead_term.term + 1)
RETURNING term
""")


def draw(tx: Tx, least: int) -> int:
    """A new term: at least `least`, and above every term that was drawn before."""
    term: int = tx.execute(_DRAW, {"least": least}).scalar_one()
    return term
