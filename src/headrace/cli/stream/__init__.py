"""The subcommands of ``headrace stream``, and the code that reads and writes for them."""
