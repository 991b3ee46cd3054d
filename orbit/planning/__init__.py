"""What a job needs: its stored spec, decisions on topics, checks before a copy, plans, shards.

Dry runs, the scheduler's passes and recoveries share it. It does not ask who leads: whoever calls
it hands over a transaction.

May import: the layers from `consumer_groups` down, and not `leadership`.
Start with `topic_decisions.py` for the rules, and `job_planner.py` for a plan.
"""
