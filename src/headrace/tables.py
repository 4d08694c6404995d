"""Read the tables of a running app from Python, and declare remote tables for ``app.table(remote=)``."""

from headrace.api.remote import Remote, cached, remote, sql_table
from headrace.run.tables import TableReader, open_table

__all__ = ["Remote", "TableReader", "cached", "open_table", "remote", "sql_table"]
