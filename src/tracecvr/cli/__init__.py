"""The command line: commands, what they print, and the commands of live models."""

from tracecvr.cli.commands import main

__all__ = ["main"]
