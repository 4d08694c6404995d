"""Metrics and traces for OpenTelemetry: what is sent, in which words, and the thread that sends it."""
