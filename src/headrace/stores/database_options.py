"""RocksDB's options for ``stores.database``."""

from __future__ import annotations

from rocksdict import BlockBasedOptions, Cache, Options, WriteOptions

_BLOB_BYTES_MIN = 2048
"""Values of at least this size are stored in blob files, so that compaction need not copy them."""
_BLOOM_BITS = 10  # one in a hundred lookups of an absent key reads a block
_WRITE_BUFFER_BYTES = 16 << 20
"""A task may have two such buffers in memory, and a start reads as much of RocksDB's log. Smaller ones start faster."""

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
"""RocksDB's defaults."""


def write_options(*, logged: bool = True) -> WriteOptions:
    """Return the options for writing a batch. With ``logged`` it survives the death of the process at once."""
    written = WriteOptions()
    # RocksDict's type hints declare methods here, but these are properties.
    written.memtable_insert_hint_per_batch = True
    written.disable_wal = not logged  # type: ignore[method-assign, assignment]
    return written


def options(cache: Cache) -> Options:
    """Return the options for opening a database."""
    built = Options(raw_mode=True)
    built.create_if_missing(True)
    built.set_enable_blob_files(True)
    built.set_min_blob_size(_BLOB_BYTES_MIN)
    built.set_enable_blob_gc(True)
    built.set_keep_log_file_num(1)
    built.set_max_log_file_size(1 << 20)
    built.set_max_background_jobs(1)
    built.set_allow_concurrent_memtable_write(False)  # one thread writes
    built.set_write_buffer_size(_WRITE_BUFFER_BYTES)
    # Nothing reads RocksDB's statistics, so no thread wakes up for them, and no table is read for them at the opening.
    built.set_stats_dump_period_sec(0)
    built.set_stats_persist_period_sec(0)
    built.set_skip_stats_update_on_db_open(True)
    built.set_max_file_opening_threads(1)
    tables = BlockBasedOptions()
    tables.set_block_cache(cache)
    tables.set_bloom_filter(_BLOOM_BITS, False)
    built.set_block_based_table_factory(tables)
    return built
