"""Calls that take time: made beside the run loop, their results put back in order."""
