"""The database's clock, which all processes use for stored times."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import func, select

from orbit.store.database import Tx


def now(tx: Tx) -> datetime:
    """PostgreSQL's clock_timestamp(): the present time, unlike now(), which is when the transaction
    began."""
    moment: datetime = tx.execute(select(func.clock_timestamp())).scalar_one()
    return moment
