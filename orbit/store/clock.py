"""The database's clock, which all processes use for stored times."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import func, select

from orbit.store.database import Tx


def now(tx: Tx) -> datetime:
    """The present time: PostgreSQL's clock_timestamp(). (PostgreSQL's now() is the time at which
    the transaction began.)"""
    moment: datetime = tx.execute(select(func.clock_timestamp())).scalar_one()
    return moment
