"""Operators at run time: one file each, fed by the chain, knowing nothing of frames, containers or clocks."""
