"""Operators that call the user's functions and tasks."""
