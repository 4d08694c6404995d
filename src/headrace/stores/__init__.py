"""State of tasks: stores that log their changes, and can be rebuilt from them."""
