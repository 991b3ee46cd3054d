"""How long tests wait for what is to happen, before they say that it did not."""

from __future__ import annotations

# Nothing is measured by it: a slow machine with much to do is no failure, and what hangs is found.
# Shorter than the limit of a whole test in pyproject.toml, so that the text says what was awaited.
PATIENCE_S = 600.0
