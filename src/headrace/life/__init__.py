"""What outlives a run: the metadata store, startpoints, savepoints, timelines, and the records of the last start."""
