"""Suites of cells, carried out by processes or on a cluster, with statistics and tables: see docs/bench.md."""
