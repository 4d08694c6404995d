"""Taking savepoints of running apps, restoring them, reading what they hold, and writing them from rows."""
