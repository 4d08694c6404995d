"""The command line: one verb a module, each a thin print over a function that returns data."""
