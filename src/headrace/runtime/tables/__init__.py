"""Tables as one task has them: filled, looked up, remote, expired, and asked from outside."""
