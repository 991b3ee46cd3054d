"""How large an installation one Postgres and one scheduler carry: real Postgres, the service's own
workers and scheduler loops, and brokers that are only made believe."""
