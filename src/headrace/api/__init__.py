"""What users declare apps with, and the frozen specs that come of it. Nothing here runs an app."""
