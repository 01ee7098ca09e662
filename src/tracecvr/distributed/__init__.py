"""Several workers for one run: processes of this machine, or of a Ray cluster."""
