"""`h2h predict`: classify texts."""

from __future__ import annotations

from typing import Annotated

import typer

from headtohead.cli.app import JsonOption, ModelFolderArgument, app, print_json


@app.command()
def predict(
    model: ModelFolderArgument,
    text: Annotated[list[str], typer.Argument(help="One or more texts to classify.")],
    as_json: JsonOption = False,
) -> None:
    """Classify texts with a trained classifier and print its confidence."""
    from headtohead.experiment import inference
    from headtohead.experiment.open_model import open_model
    from headtohead.report import terminal

    loaded_model = open_model(model)
    predictions = [inference.predict_class(loaded_model, row) for row in text]
    print_json([prediction.to_json() for prediction in predictions]) if as_json else terminal.print_predictions(
        predictions
    )
