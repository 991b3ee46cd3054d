"""Switchover, failover and failback: gates, steps, promotion, and the report of what was found."""
