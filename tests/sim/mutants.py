"""All mutants."""

import mutants_apps
import mutants_known
import mutants_more
from mutant_kit import MUTANTS

__all__ = ["MUTANTS", "mutants_apps", "mutants_known", "mutants_more"]
