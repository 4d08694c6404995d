"""Delta tables as targets."""
