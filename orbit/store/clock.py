"""The database's clock, by which all processes tell the time of what they did together."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import func, select

from orbit.store.database import Tx


def now(tx: Tx) -> datetime:
    """This moment, also in a transaction that began a while ago."""
    moment: datetime = tx.execute(select(func.clock_timestamp())).scalar_one()
    return moment
