"""What runs a plan: this process, or long-lived containers on Spark."""
