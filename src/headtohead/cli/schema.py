"""`h2h schema`: the JSON schema of experiment files."""

from __future__ import annotations

from headtohead.cli.app import app, print_json


@app.command()
def schema() -> None:
    """Print the JSON schema of experiment files, for editors."""
    from headtohead.experiment.loading import build_json_schema

    print_json(build_json_schema())
