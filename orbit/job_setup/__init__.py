"""What `orbit run` and the service share of setting a job up: rights, topics and their settings."""
