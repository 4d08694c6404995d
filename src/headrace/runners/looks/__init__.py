"""Looks into running containers, on demand: rows that a step takes, and what threads do."""
