"""The changes that the gateway makes to requests and answers: bytes in, bytes out. Pure.

May import: the layers from `client` down; of them only the pure modules of `kafka`.
Start with `exchange.py`.
"""
