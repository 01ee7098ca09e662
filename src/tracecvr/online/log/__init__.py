"""The event log: events from JSON to rows, the database they are kept in, how its time is divided, group commit."""
