"""All mutants."""

import mutants_apps
import mutants_by_clock
import mutants_by_lives
import mutants_known
import mutants_more
import mutants_of_changes
import mutants_of_changing_rows
import mutants_of_durability
import mutants_of_kinesis
import mutants_of_objects
import mutants_of_order
import mutants_of_progress
import mutants_of_savepoints
import mutants_of_startpoints
import mutants_of_the_host
import mutants_of_time
import mutants_waiting
from mutant_kit import MUTANTS

__all__ = [
    "MUTANTS",
    "mutants_apps",
    "mutants_by_clock",
    "mutants_by_lives",
    "mutants_known",
    "mutants_more",
    "mutants_of_changes",
    "mutants_of_changing_rows",
    "mutants_of_durability",
    "mutants_of_kinesis",
    "mutants_of_objects",
    "mutants_of_order",
    "mutants_of_progress",
    "mutants_of_savepoints",
    "mutants_of_startpoints",
    "mutants_of_the_host",
    "mutants_of_time",
    "mutants_waiting",
]
