"""Connectors to foreign systems: one folder each, with everything that is its own. They are found by entry points."""
