"""`h2h score`: loss and perplexity of texts, token by token."""

from __future__ import annotations

from typing import Annotated

import typer

from headtohead.cli.app import JsonOption, ModelFolderArgument, app, print_json


@app.command()
def score(
    model: ModelFolderArgument,
    text: Annotated[list[str], typer.Argument(help="One or more texts to score.")],
    as_json: JsonOption = False,
) -> None:
    """Print loss and perplexity of texts under a language model, token by token."""
    from headtohead.experiment import inference
    from headtohead.experiment.open_model import open_model
    from headtohead.report import terminal

    loaded_model = open_model(model)
    scores = [inference.score_text(loaded_model, row) for row in text]
    print_json([score.to_json() for score in scores]) if as_json else terminal.print_token_scores(scores)
