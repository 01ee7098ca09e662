"""The command line: commands, what they print, what `new-method` writes, and the commands of live models."""

from tracecvr.cli.commands import main

__all__ = ["main"]
