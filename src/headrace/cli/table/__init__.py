"""``headrace table``: what the tables of a running app hold."""
