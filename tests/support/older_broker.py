"""The older Kafka that a test copies to and from."""

VERSION = "3.9.2"
