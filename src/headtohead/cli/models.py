"""Verbs for one model: audit, predict, score; allow, for code it brings; doctor, for the machine it runs on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headtohead.cli.app import JsonOption, ModelFolderArgument, app, print_json


@app.command()
def audit(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A run folder, or your own network: my_gpt.py:GPT.")],
    vocab: Annotated[int, typer.Option(min=2, help="Your own network: size of the vocabulary.")] = 100,
    context: Annotated[int, typer.Option(min=4, help="Your own network: length of its inputs.")] = 32,
    classes: Annotated[
        int | None, typer.Option(min=2, help="Your own network: classes, if it is a classifier.")
    ] = None,
    option: Annotated[list[str] | None, typer.Option(help="Your own network: an argument, as n_layer=2.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Check whether a model's numbers can be believed: does it read the future, its neighbours, the padding?"""
    from headtohead.experiment.audit_target import audit_target
    from headtohead.report import terminal

    found = audit_target(model, vocab_size=vocab, context=context, num_classes=classes, options=option or ())
    rows = [finding.to_dict() for finding in found]
    print_json(rows) if as_json else terminal.print_audits(rows)
    if any(row["passed"] is False and row["is_blocking"] for row in rows):
        raise typer.Exit(1)


@app.command()
def allow(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, or an experiment's.")],
    as_json: JsonOption = False,
) -> None:
    """Allow the code that a run folder of somebody else brings along to be run; read it first."""
    from headtohead.experiment.trust import trust_run

    files = [str(file) for file in trust_run(run)]
    print_json(files) if as_json else typer.echo("\n".join(f"may be run from now on: {file}" for file in files))


@app.command()
def predict(
    model: ModelFolderArgument,
    text: Annotated[list[str], typer.Argument(help="One or more texts.")],
    as_json: JsonOption = False,
) -> None:
    """Name the class of a text, with confidence (a classifier's run folder)."""
    from headtohead.experiment import inference
    from headtohead.experiment.open_model import open_model
    from headtohead.report import terminal

    loaded = open_model(model)
    answers = [inference.predict_class(loaded, one) for one in text]
    print_json(answers) if as_json else terminal.print_predictions(answers)


@app.command()
def score(
    model: ModelFolderArgument,
    text: Annotated[list[str], typer.Argument(help="One or more sentences.")],
    as_json: JsonOption = False,
) -> None:
    """Loss and perplexity of sentences, token by token (a language model: a run folder, or a pretrained one)."""
    from headtohead.experiment import inference
    from headtohead.experiment.open_model import open_model
    from headtohead.report import terminal

    loaded = open_model(model)
    answers = [inference.score_text(loaded, one) for one in text]
    print_json(answers) if as_json else terminal.print_token_scores(answers)


@app.command()
def doctor(as_json: JsonOption = False) -> None:
    """Say what this machine has and can do: device, threads, memory, packages, bfloat16."""
    from headtohead.report import terminal
    from headtohead.training import devices

    found = devices.inspect_machine()
    print_json(found.to_dict()) if as_json else terminal.print_device_report(found.to_dict())
