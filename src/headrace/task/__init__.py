"""A running app inside one container: loop, tasks, operators. Knows nothing of Spark."""
