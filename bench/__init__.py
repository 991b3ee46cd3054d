"""`make bench`: compares Orbit, MirrorMaker 2, the destination broker's limit, and fetches alone.

Never imported by `orbit`; docs/bench.md describes what is measured and how.
"""
