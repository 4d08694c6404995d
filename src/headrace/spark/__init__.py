"""Streams as Spark's DataFrames: ``spark.read.format("headrace")`` and ``spark.readStream.format("headrace")``.

``register`` makes the format known to a session. PySpark is imported when it is called.
"""

from headrace.spark.source import register

__all__ = ["register"]
