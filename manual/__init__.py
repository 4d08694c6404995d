"""Builds the site of the documentation. Not installed."""
