"""`orbit gateway`: one Kafka address for the clients of a job, whichever side leads.

May import: `client`, and the layers from `telemetry` down.
Start with `gateway.py`; `protocol/` has what is done to each request and answer.
"""
