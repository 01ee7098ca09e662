"""The live learner's commands. Imported by the command line at every start, so it imports nothing heavy itself."""
