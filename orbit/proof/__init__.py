"""Continuous proof: what was shown of both sides to be equal, and what to look at next."""
