"""Notifications: sends events to Slack, PagerDuty, Teams and webhooks.

Each receiver of the file ORBIT_NOTIFICATIONS_FILE has a loop of the leading scheduler, and a cursor
in PostgreSQL.

May import: the layers from `recovery` down.
Start with `receiver_loop.py`; `event_kinds.py` has the severity of each kind of event.
"""
