"""Benchmarks: ratios within one run, against named peers on the same data. They claim no absolute speeds."""
