"""Kafka: topics as inputs and outputs, and the log of an app in topics."""
