"""Looking at a log that nobody has described yet: what its columns seem to mean, and a schema that says so.

Files are read whole, in batches. First a sample tells what columns are (`columns`, `guess`); then the log is cleaned by
a draft of the schema, with the code that `prepare` uses, which tells delays, leaks and defects (`measured`); at last
the schema is written, with what was seen in comments (`proposal`). `look` does all of it.
"""
