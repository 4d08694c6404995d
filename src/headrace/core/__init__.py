"""The nouns everything else is made of: ids, errors, frames, clocks, durations. Imports nothing of Headrace."""
