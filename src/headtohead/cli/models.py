"""`h2h audit`, `h2h trust`, `h2h predict` and `h2h score`: check and use a trained model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headtohead.cli.app import JsonOption, app, echo, print_json

RunFolderArgument = Annotated[Path, typer.Argument(metavar="MODEL", help="Run folder: runs/EXPERIMENT/VARIANT/seed-0.")]


@app.command()
def audit(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Run folder, pretrained model, or my_gpt.py:GPT.")],
    vocab: Annotated[int, typer.Option(min=2, help="Module: vocabulary size.")] = 100,
    context: Annotated[int, typer.Option(min=4, help="Module: input length.")] = 32,
    classes: Annotated[int | None, typer.Option(min=2, help="Module: number of classes, for a classifier.")] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Module: constructor argument, e.g. n_layer=2; repeatable."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Check a model for leaks.

    Find out whether it uses future tokens, other rows of the batch, or padding.
    """
    from headtohead.report import terminal
    from headtohead.saved_models.audit_target import audit_target

    results = audit_target(model, vocab_size=vocab, context=context, num_classes=classes, options=option or ())
    print_json([result.to_dict() for result in results]) if as_json else terminal.print_audits(results)
    if any(result.passed is False and result.is_blocking for result in results):
        raise typer.Exit(1)


@app.command()
def trust(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder or experiment folder.")],
    as_json: JsonOption = False,
) -> None:
    """Allow the Python files in a run folder to be executed. Read them first."""
    from headtohead.experiment.trust import trust_run

    files = [str(file) for file in trust_run(run)]
    print_json(files) if as_json else echo("\n".join(f"trusted: {file}" for file in files))


@app.command()
def predict(
    model: RunFolderArgument,
    text: Annotated[list[str], typer.Argument(help="One or more texts to classify.")],
    as_json: JsonOption = False,
) -> None:
    """Classify texts with a trained classifier."""
    from headtohead.report import terminal
    from headtohead.saved_models import inference
    from headtohead.saved_models.open_model import open_model

    loaded_model = open_model(model)
    predictions = [inference.predict_class(loaded_model, row) for row in text]
    print_json([prediction.to_json() for prediction in predictions]) if as_json else terminal.print_predictions(
        predictions
    )


@app.command()
def score(
    model: RunFolderArgument,
    text: Annotated[list[str], typer.Argument(help="One or more texts to score.")],
    stride: Annotated[
        int | None,
        typer.Option(min=1, help="Tokens that each block of a long text predicts. [default: the context]"),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Print the perplexity of texts, token by token."""
    from headtohead.report import terminal
    from headtohead.saved_models import inference
    from headtohead.saved_models.open_model import open_model

    loaded_model = open_model(model)
    scores = [inference.score_text(loaded_model, row, stride=stride) for row in text]
    print_json([score.to_json() for score in scores]) if as_json else terminal.print_token_scores(scores)
