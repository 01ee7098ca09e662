"""Looking at a log that has no schema yet: what its columns seem to mean, and a schema that says so.

Files are read whole, in batches. First a sample tells what columns are (`tables`, `columns`, `roles`). Then the log is
cleaned by a draft of the schema, with the code that `prepare` uses, which tells delays, leaks and defects
(`measurements`). `inspect_log` does all of it, and proposes the schema, with what was seen in comments.
"""
