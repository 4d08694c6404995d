"""Event time: watermarks, idle inputs, time columns."""
