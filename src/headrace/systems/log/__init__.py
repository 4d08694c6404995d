"""The embedded log system."""

from headrace.systems.log.system import LogSystem, open_log

__all__ = ["LogSystem", "open_log"]
