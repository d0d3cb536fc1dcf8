"""The command line `h2h`. A file a family of verbs; importing one adds its verbs, in the order of `h2h --help`."""

from importlib import import_module

from headtohead.cli.app import app, main

for _family in ("experiments", "models", "attention", "design", "generate", "decode", "parts", "serve"):
    import_module(f".{_family}", __name__)

__all__ = ["app", "main"]
