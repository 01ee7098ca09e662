"""One run in one directory: replay a log, predict each interval, then learn from it."""
