"""``headrace table``: read the tables of a running app."""
