"""The command line `h2h`: one module per group of commands, imported when one of its commands is used."""

from headtohead.cli.app import app, main

__all__ = ["app", "main"]
