"""Benchmarks: a suite of cells, carried out by processes or on a cluster, with statistics and tables.

docs/bench.md says what a suite is, and what a bench writes.
"""
