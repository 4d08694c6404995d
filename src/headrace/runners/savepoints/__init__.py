"""Taking savepoints of running apps, restoring them, and reading what they hold."""
