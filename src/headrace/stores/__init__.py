"""State of tasks: what can say what changed and be rebuilt from it."""
