"""Benchmarks: ratios in one run, against named peers on the same data. Never absolute claims."""
