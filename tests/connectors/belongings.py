"""Which tests need which connector. Without the connector's folder, they go with it, and all others pass.

``tests/unit/connectors/NAME`` belongs to NAME, too. An entry is a file, or a test of a file that needs no connector
otherwise, as pytest names it (without parameters).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "headrace.connectors"

BELONGINGS: Mapping[str, tuple[str, ...]] = {
    "delta": (
        "tests/contracts/test_targets.py",
        "tests/local/delta_program.py",
        "tests/local/test_into_delta.py",
        "tests/spark/test_delta_on_spark.py",
        "tests/unit/api/test_delta_descriptor.py",
        "tests/unit/api/test_other_names.py::test_an_advice_names_what_exists",
    ),
    "formats": (
        "tests/contracts/test_fuzzed_decoders.py",
        "tests/contracts/test_schema_registries.py",
        "tests/local/test_kafka_changes_of_tables.py",
        "tests/local/test_record_formats_end_to_end.py",
        "tests/servers/schema_registry.py",
        "tests/unit/api/test_kafka_descriptor.py",
        "tests/unit/api/test_kinesis.py",
        "tests/unit/api/test_other_names.py::test_an_advice_names_what_exists",
        "tests/unit/api/test_record_formats.py",
    ),
    "kafka": (
        "tests/chaos/test_chaos_kafka_server.py",
        "tests/chaos/test_chaos_on_kafka.py",
        "tests/contracts/test_fuzzed_decoders.py",
        "tests/contracts/test_kafka_consumer.py",
        "tests/contracts/test_kafka_log.py",
        "tests/contracts/test_kafka_log_trouble.py",
        "tests/contracts/test_kafka_output.py",
        "tests/contracts/test_kafka_output_expiry.py",
        "tests/contracts/test_kafka_output_kills.py",
        "tests/contracts/test_kafka_security.py",
        "tests/contracts/test_kafka_topics.py",
        "tests/kafka_writers.py",
        "tests/local/into_kafka_program.py",
        "tests/local/kafka_log_program.py",
        "tests/local/kafka_program.py",
        "tests/local/objects_program.py",
        "tests/local/test_commands_elsewhere.py",
        "tests/local/test_into_kafka.py",
        "tests/local/test_kafka_changes_of_tables.py",
        "tests/local/test_kafka_exactly_once.py",
        "tests/local/test_kafka_log_killed.py",
        "tests/local/test_kafka_trouble.py",
        "tests/local/test_savepoints_in_kafka.py",
        "tests/local/test_snapshots_in_s3_killed.py",
        "tests/local/test_startpoints_matrix.py",
        "tests/plan/cases/kafka.plan.txt",
        "tests/plan/cases/kafka.py",
        "tests/servers/kafka_topics.py",
        "tests/spark/test_chaos_cluster.py",
        "tests/unit/api/test_kafka_descriptor.py",
        "tests/unit/api/test_kafka_secrets.py",
        "tests/unit/api/test_other_names.py::test_an_advice_names_what_exists",
        "tests/unit/api/test_record_formats.py",
        "tests/unit/operate/page/test_plan_drawing.py::test_topics_say_which_ones_they_are",
        "tests/unit/plan/test_plan_keys.py::test_a_topic_keyed_by_kafkas_hash_is_not_partitioned_like_a_stream_of_ours",
        "tests/unit/run/test_no_shared_disk.py",
        "tests/unit/systems/test_app_systems.py",
        "tests/unit/systems/test_registry.py::test_an_unknown_kind_names_what_is_installed",
        "tests/unit/task/test_intake.py::test_a_key_that_no_system_keeps_together_is_refused",
    ),
    "kinesis": (
        "tests/chaos/test_chaos_kinesis.py",
        "tests/contracts/test_fuzzed_decoders.py",
        "tests/contracts/test_kinesis_api.py",
        "tests/contracts/test_kinesis_output.py",
        "tests/contracts/test_lease_tables.py",
        "tests/local/kinesis_program.py",
        "tests/local/test_kinesis_beside_others.py",
        "tests/local/test_kinesis_commands.py",
        "tests/local/test_kinesis_exactly_once.py",
        "tests/local/test_kinesis_in_process.py",
        "tests/local/test_kinesis_leases.py",
        "tests/local/test_kinesis_output_in_process.py",
        "tests/local/test_kinesis_trouble.py",
        "tests/local/test_record_formats_end_to_end.py",
        "tests/local/test_startpoints_matrix.py",
        "tests/plan/cases/kinesis.plan.txt",
        "tests/plan/cases/kinesis.py",
        "tests/servers/kinesis_streams.py",
        "tests/servers/lease_tables.py",
        "tests/sim/mutants_of_kinesis.py",
        "tests/sim/test_sim_kinesis.py",
        "tests/spark/test_kinesis_on_spark.py",
        "tests/unit/api/test_kinesis.py",
        "tests/unit/api/test_other_names.py::test_an_advice_names_what_exists",
        "tests/unit/api/test_record_formats.py",
        "tests/unit/kit/test_preview.py::test_what_can_not_be_read_is_refused_with_what_to_do",
        "tests/unit/plan/test_slots.py",
        "tests/unit/run/test_no_shared_disk.py",
        "tests/unit/systems/test_registry.py::test_an_unknown_kind_names_what_is_installed",
        "tests/unit/systems/test_registry.py::test_records_and_rows_are_distinguished_by_the_kind",
        "tests/unit/task/test_publishing_at_least_once.py",
    ),
    "objects": (
        "tests/contracts/test_object_stores.py",
        "tests/local/objects_program.py",
        "tests/local/test_snapshots_in_s3_killed.py",
        "tests/servers/s3_buckets.py",
        "tests/unit/operate/cli/test_cli_checkpoint.py::test_snapshots_in_an_object_store_are_shown_too",
        "tests/unit/operate/cli/test_cli_checkpoint.py::test_the_object_store_is_known_from_the_last_start",
        "tests/unit/operate/cli/test_cli_savepoint.py::test_snapshots_move_with_a_restore_only",
        "tests/unit/operate/cli/test_cli_savepoint.py::test_the_store_of_an_old_timeline_needs_no_option",
        "tests/unit/operate/cli/test_cli_savepoint.py::test_with_an_old_timeline_go_its_snapshots_in_a_store",
        "tests/unit/task/test_host_snapshots_in_a_store.py::test_folders_of_files_are_a_store_too",
    ),
    "otel": ("tests/servers/otlp_collector.py",),
    "sql": (
        "tests/contracts/test_targets.py",
        "tests/local/calls_program.py",
        "tests/local/counting_program.py",
        "tests/local/test_calls_killed.py",
        "tests/local/test_into_postgres.py",
        "tests/unit/life/test_metadata_postgres.py",
        "tests/unit/operate/cli/test_cli_changed_apps.py::test_plan_asks_the_targets_what_the_start_would_do",
        "tests/unit/operate/cli/test_metadata_option.py::test_a_database_that_doesnt_answer_is_named",
        "tests/unit/operate/cli/test_metadata_option.py::test_an_app_is_found_from_any_folder",
        "tests/unit/operate/cli/test_metadata_option.py::test_an_app_may_name_the_database",
        "tests/unit/operate/page/test_plan_drawing.py::test_a_sql_table_says_where_it_is_and_not_that_it_has_partitions",
        "tests/unit/run/test_prepare.py::test_containers_dont_get_the_url_of_the_metadata_store",
        "tests/unit/systems/test_registry.py::test_an_unknown_kind_names_what_is_installed",
    ),
}


def belongings(connector: str) -> Iterator[str]:
    """The folders, files and tests that need a connector."""
    yield f"tests/unit/connectors/{connector}"
    yield from BELONGINGS[connector]
