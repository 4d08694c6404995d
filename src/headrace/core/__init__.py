"""What every other package uses: ids, errors, frames, clocks, durations, log lines. Imports no other package."""
