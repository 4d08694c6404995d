"""Slow calls: made outside the run loop, with their results put back in order."""
