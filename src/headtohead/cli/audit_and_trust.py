"""`h2h audit` and `h2h trust`: check a model, and allow the code in a run folder to be executed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headtohead.cli.app import JsonOption, app, echo, print_json

if TYPE_CHECKING:
    from headtohead.audit.result import CheckResult


@app.command()
def audit(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="Run folder, pretrained model (folder, GGUF file or hub:owner/name), or nn.Module in a Python file: "
            "my_gpt.py:GPT.",
        ),
    ],
    vocab: Annotated[int, typer.Option(metavar="N", min=2, help="nn.Module only: vocabulary size.")] = 100,
    context: Annotated[int, typer.Option(metavar="N", min=4, help="nn.Module only: input length in tokens.")] = 32,
    classes: Annotated[
        int | None, typer.Option(metavar="N", min=2, help="nn.Module only: number of classes, if it is a classifier.")
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE", help="nn.Module only: argument of its constructor, e.g. n_layer=2; repeatable."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Check a model for leaks.

    Test whether it uses future tokens, other rows of the batch, or padding.
    """
    from headtohead.saved_models.audit_target import audit_target

    results = audit_target(model, vocab_size=vocab, context=context, num_classes=classes, options=option or ())
    print_json([result.to_dict() for result in results]) if as_json else _print_audits(results)
    if any(result.passed is False and result.is_blocking for result in results):
        raise typer.Exit(1)


def _print_audits(audits: Sequence[CheckResult]) -> None:
    """Print the result of `h2h audit`: each check's procedure, observation and interpretation, failed ones first."""
    from rich.markup import escape

    from headtohead.presentation.renderers.terminal import get_stdout_console, print_indented

    marks = {True: "[green]passed[/]", False: "[red]failed[/]", None: "[dim]does not apply[/]"}

    for audit in sorted(audits, key=lambda audit: (audit.passed is not False, audit.passed is None)):
        get_stdout_console().print(f"[bold]{escape(audit.name)}[/]: {marks[audit.passed]}")
        lines = [audit.procedure, audit.observation]
        for line in lines if audit.passed is None else [*lines, audit.interpretation]:
            print_indented(escape(line), 4)


@app.command()
def trust(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder or experiment folder.")],
    as_json: JsonOption = False,
) -> None:
    """Allow the Python files in a run folder to be executed.

    Read them first: commands that open the model run this code.
    """
    from headtohead.experiment.trust import trust_run

    files = [str(file) for file in trust_run(run)]
    print_json(files) if as_json else echo("\n".join(f"trusted: {file}" for file in files))
