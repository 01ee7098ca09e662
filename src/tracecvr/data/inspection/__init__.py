"""Looking at a log that has no schema yet: what its columns seem to mean, and a schema that says so."""
