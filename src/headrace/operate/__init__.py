"""Connectors to the systems of others: one folder each."""
