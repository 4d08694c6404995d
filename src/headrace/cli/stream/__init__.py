"""The subcommands of ``headrace stream``, and how they read and write."""
