"""Containers as the tasks of one long Spark job."""
