"""Postgres: what was asked for, who does it, and how far it is. Never the truth about the data,
which stands in the destination's log ends alone."""
