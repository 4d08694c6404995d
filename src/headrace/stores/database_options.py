"""How RocksDB is told to behave (``stores.database``)."""

from __future__ import annotations

from rocksdict import BlockBasedOptions, Cache, Options, WriteOptions

_BLOB_BYTES_MIN = 2048
"""Values from this size on lie beside the tables: compaction need not carry them along."""
_BLOOM_BITS = 10  # of a hundred looks for a key that isn't there, one reads a block
_WRITE_BUFFER_BYTES = 16 << 20
"""What a task may hold in memory twice, and what a start reads of RocksDB's own log. A smaller one is read faster."""

WHILE_REBUILDING = {
    "disable_auto_compactions": "true",
    "level0_slowdown_writes_trigger": "1000000",
    "level0_stop_writes_trigger": "1000000",
}
AFTERWARDS = {
    "level0_slowdown_writes_trigger": "20",
    "level0_stop_writes_trigger": "36",
    "disable_auto_compactions": "false",
}
"""What RocksDB does by itself."""


def write_options(*, logged: bool = True) -> WriteOptions:
    """What a batch is written with; ``logged``: it is durable against the death of the process at once."""
    written = WriteOptions()
    # These are properties, whatever RocksDict's types say.
    written.memtable_insert_hint_per_batch = True
    written.disable_wal = not logged  # type: ignore[method-assign, assignment]
    return written


def options(cache: Cache) -> Options:
    """What a database is opened with."""
    told = Options(raw_mode=True)
    told.create_if_missing(True)
    told.set_enable_blob_files(True)
    told.set_min_blob_size(_BLOB_BYTES_MIN)
    told.set_enable_blob_gc(True)
    told.set_keep_log_file_num(1)
    told.set_max_log_file_size(1 << 20)
    told.set_max_background_jobs(1)
    told.set_allow_concurrent_memtable_write(False)  # one thread writes
    told.set_write_buffer_size(_WRITE_BUFFER_BYTES)
    # Nobody reads its statistics: neither threads that wake up for them, nor a look at each table when it is opened.
    told.set_stats_dump_period_sec(0)
    told.set_stats_persist_period_sec(0)
    told.set_skip_stats_update_on_db_open(True)
    told.set_max_file_opening_threads(1)
    tables = BlockBasedOptions()
    tables.set_block_cache(cache)
    tables.set_bloom_filter(_BLOOM_BITS, False)
    told.set_block_based_table_factory(tables)
    return told
