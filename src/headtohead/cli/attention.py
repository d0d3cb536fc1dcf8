"""`h2h attention`: attention maps of a model on a text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headtohead.cli.app import JsonOption, app, print_json


@app.command()
def attention(
    model: Annotated[
        str,
        typer.Argument(metavar="MODEL", help="Run folder (runs/EXPERIMENT/VARIANT/seed-0) or pretrained model."),
    ],
    text: Annotated[str, typer.Argument(help="Input text.")],
    layer: Annotated[int | None, typer.Option(help="Show one layer, counted from 1.")] = None,
    head: Annotated[int | None, typer.Option(help="Show one head; with --layer, a single large map.")] = None,
    before_training: Annotated[
        bool, typer.Option("--before-training", help="Also show the maps before training.")
    ] = False,
    compare_to: Annotated[
        str | None, typer.Option(metavar="MODEL", help="Second model on the same text; also show the difference.")
    ] = None,
    pad: Annotated[
        bool | None,
        typer.Option("--pad/--no-pad", help="Pad to the context length. [default: partly, for classifiers]"),
    ] = None,
    ablate_heads: Annotated[
        bool, typer.Option("--ablate-heads", help="Measure how much the loss rises without each head.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="Output: .html, .svg, .pdf or .png. [default: attention.html; none with --json]"),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show the attention maps of every head."""
    from headtohead.attention_analysis import api, terminal
    from headtohead.presentation.picture_files import check_picture_path

    if out is not None:
        check_picture_path(out)
    analysis = api.analyze_attention(
        model,
        text,
        before_training=before_training,
        compare_to=compare_to,
        layer=layer,
        head=head,
        pad=pad,
        ablate_heads=ablate_heads,
    )
    target = out if out is not None or as_json else Path("attention.html")
    written = analysis.save(target) if target is not None else None
    if as_json:
        print_json({**analysis.to_dict(), "file": str(written) if written else None})
    else:
        terminal.print_analysis(analysis, written)
