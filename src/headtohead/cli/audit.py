"""`h2h audit`: check whether the scores of a model can be trusted."""

from __future__ import annotations

from typing import Annotated

import typer

from headtohead.cli.app import JsonOption, app, print_json


@app.command()
def audit(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Run folder, or a module: my_gpt.py:GPT.")],
    vocab: Annotated[int, typer.Option(min=2, help="Module: vocabulary size.")] = 100,
    context: Annotated[int, typer.Option(min=4, help="Module: input length.")] = 32,
    classes: Annotated[int | None, typer.Option(min=2, help="Module: number of classes, for a classifier.")] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Module: constructor argument, e.g. n_layer=2; repeatable."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Check whether a model uses future tokens, other rows of the batch, or padding."""
    from headtohead.experiment.audit_target import audit_target
    from headtohead.report import terminal

    results = audit_target(model, vocab_size=vocab, context=context, num_classes=classes, options=option or ())
    print_json([result.to_dict() for result in results]) if as_json else terminal.print_audits(results)
    if any(result.passed is False and result.is_blocking for result in results):
        raise typer.Exit(1)
