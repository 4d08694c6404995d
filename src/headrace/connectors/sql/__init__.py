"""Tables of SQLite and PostgreSQL databases as targets and remote tables, and a metadata store."""
