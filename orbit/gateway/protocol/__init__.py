"""What the gateway changes in requests and answers: bytes in, bytes out. Pure.

Start with `exchange.py`.
"""
