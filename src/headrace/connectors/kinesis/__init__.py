"""Kinesis as a system: a stream whose partitions are slots, which read shards as they come and go."""
