"""Clicks as a table: its schema, encoding, preparing, logs of your own, and the inspection of a log."""
