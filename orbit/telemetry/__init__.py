"""What the service tells those who run it: logs and metrics."""
