"""Run a plan: in this process, or in long-lived containers on Spark."""
