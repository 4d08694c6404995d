"""The way out: frames to partitions, watermarks to downstream tasks, committed rows to foreign systems."""
