"""The command line. Each verb has its own module: a function that returns data, and a thin print over it."""
