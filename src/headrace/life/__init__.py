"""Savepoints: consistent copies of an app's state and positions, and the timelines that begin with them."""
