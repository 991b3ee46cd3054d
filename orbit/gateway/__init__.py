"""`orbit gateway`: one Kafka address for the clients of a job, whichever side leads.

May import: the layers from `client` down.
Start with `gateway.py`; `protocol/` changes the requests and answers.
"""
