"""The command line `h2h`: one module per group of commands. Importing a module registers its commands."""

from importlib import import_module

from headtohead.cli.app import app, main

# The order of `h2h --help`.
MODULES = (
    "run versus results recipes models inference exchange doctor attention design generate decode parts serve".split()
)
for _module in MODULES:
    import_module(f".{_module}", __name__)

__all__ = ["app", "main"]
