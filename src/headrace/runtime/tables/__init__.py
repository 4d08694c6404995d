"""The tables of a task: filled, looked up, remote, expired, and queried from outside."""
