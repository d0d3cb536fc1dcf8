"""`h2h predict` and `h2h score`: classify texts with a trained classifier, and score texts with a language model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headtohead.cli.app import JsonOption, app, print_json

if TYPE_CHECKING:
    from headtohead.experiment.schemas import ClassPrediction, TextScore

RunFolderArgument = Annotated[
    Path,
    typer.Argument(metavar="MODEL", help="Run folder of a trained model, such as runs/EXPERIMENT/VARIANT/seed-0."),
]


@app.command()
def predict(
    model: RunFolderArgument,
    texts: Annotated[list[str], typer.Argument(metavar="TEXT", help="One or more texts to classify.")],
    as_json: JsonOption = False,
) -> None:
    """Classify texts with a trained classifier."""
    from headtohead.saved_models import inference
    from headtohead.saved_models.open_model import open_model

    loaded_model = open_model(model)
    predictions = [inference.predict_class(loaded_model, text) for text in texts]
    print_json([prediction.to_json() for prediction in predictions]) if as_json else _print_class_predictions(
        predictions
    )


def _print_class_predictions(predictions: Sequence[ClassPrediction]) -> None:
    """Print the result of `h2h predict`: each text's predicted class and confidence."""
    from rich.markup import escape

    from headtohead.presentation import number_format
    from headtohead.presentation.renderers.terminal import get_stdout_console, print_table
    from headtohead.presentation.table import make_numeric_columns, make_table, make_text_columns

    columns = make_text_columns("text", "class") + make_numeric_columns("confidence")
    rows = [
        (prediction.text, prediction.label, number_format.format_percentage(prediction.confidence))
        for prediction in predictions
    ]
    print_table(make_table("predictions", "", "", columns, rows))
    console = get_stdout_console()
    for prediction in predictions:
        if prediction.truncated:
            console.print(f"[yellow]truncated at the model's context length:[/] {escape(prediction.text)}")
        if prediction.unknown_tokens:
            console.print(f"[dim]{prediction.unknown_tokens} unknown words in: {escape(prediction.text)}[/]")


@app.command()
def score(
    model: RunFolderArgument,
    texts: Annotated[list[str], typer.Argument(metavar="TEXT", help="One or more texts to score.")],
    stride: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Stride, in tokens, of the window that slides over a text longer than the context. [default: the "
            "context length]",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Print the perplexity of texts and the loss of each token."""
    from headtohead.saved_models import inference
    from headtohead.saved_models.open_model import open_model

    loaded_model = open_model(model)
    scores = [inference.score_text(loaded_model, text, stride=stride) for text in texts]
    print_json([score.to_json() for score in scores]) if as_json else _print_token_scores(scores)


def _print_token_scores(scored_texts: Sequence[TextScore]) -> None:
    """Print the result of `h2h score`: every token's loss and probability, then each text's totals."""
    from headtohead.presentation import number_format
    from headtohead.presentation.renderers.terminal import get_stdout_console, print_table
    from headtohead.presentation.table import make_numeric_columns, make_table, make_text_columns

    columns = make_text_columns("token") + make_numeric_columns("loss", "probability")
    for scored_text in scored_texts:
        rows = []
        for token in scored_text.tokens:
            name = token.token if token.known else f"{token.token} (unknown)"
            rows.append((name, number_format.format_fixed(token.loss, 3), f"{math.exp(-token.loss):.2%}"))
        print_table(make_table("tokens", scored_text.text, "", columns, rows))
        blocks = f", in {scored_text.blocks} blocks of the model's context length" if scored_text.blocks > 1 else ""
        totals = (
            f"loss {scored_text.loss:.4f}, perplexity {scored_text.perplexity:,.2f}, {len(scored_text.tokens)} tokens"
        )
        get_stdout_console().print(f"{totals}{blocks}\n")
