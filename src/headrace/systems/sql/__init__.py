"""A table of a SQL database as a target: SQLite and PostgreSQL."""

from headrace.systems.sql.system import SqlSystem, open_sql

__all__ = ["SqlSystem", "open_sql"]
