"""Tables of SQLite and PostgreSQL databases as targets and remote tables."""

from headrace.systems.sql.system import SqlSystem, open_sql

__all__ = ["SqlSystem", "open_sql"]
