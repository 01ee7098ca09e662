"""Where cells run. An engine is a `runner.Engine`."""
