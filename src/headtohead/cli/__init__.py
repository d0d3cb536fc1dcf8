"""The command line `h2h`: one module per command. Importing a module registers its command."""

from importlib import import_module

from headtohead.cli.app import app, main

# The order of `h2h --help`.
COMMANDS = (
    *("run", "plan", "report", "judge", "verify", "recipes", "schema"),
    *("audit", "trust", "predict", "score", "doctor"),
    *("attention", "design", "generate", "decode", "parts", "serve"),
)
for _command in COMMANDS:
    import_module(f".{_command}", __name__)

__all__ = ["app", "main"]
