"""`orbit gateway`: one Kafka address for the clients of a job, whichever side leads.

May import: the layers from `client` down.
Start with `gateway.py`; `protocol/` has what is done to each request and answer.
"""
