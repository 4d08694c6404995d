"""Join operators: stream with stream, and stream with table."""
