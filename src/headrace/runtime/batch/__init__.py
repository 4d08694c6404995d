"""Tasks that get all of their input at once, in order of event time: the heart of a batch job, without Spark."""
