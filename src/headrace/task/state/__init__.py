"""A task's durable state: stores over RocksDB, the changelog, snapshots."""
