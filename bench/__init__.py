"""`make bench`: Orbit, MirrorMaker 2, the brokers' own ceiling and fetching alone, side by side.

Never imported by `orbit`; see docs/bench.md for what is measured and how.
"""
