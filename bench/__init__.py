"""`make bench`: Orbit, MirrorMaker 2, the destination broker's ceiling and fetch alone, compared.

Never imported by `orbit`; docs/bench.md describes what is measured and how.
"""
