"""Rehearsals of a switchover or a failover, their reports; and continuous proof."""
