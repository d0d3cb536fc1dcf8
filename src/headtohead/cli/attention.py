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
    text: Annotated[str, typer.Argument(metavar="TEXT", help="Input text.")],
    layer: Annotated[int | None, typer.Option(metavar="N", help="Show only this layer, counted from 1.")] = None,
    head: Annotated[
        int | None, typer.Option(metavar="N", help="Show only this head, counted from 1; with --layer, a large map.")
    ] = None,
    before_training: Annotated[
        bool, typer.Option("--before-training", help="Also show the maps of the model before training.")
    ] = False,
    compare_to: Annotated[
        str | None, typer.Option(metavar="MODEL", help="Also show a second model on the same text, and the difference.")
    ] = None,
    pad: Annotated[
        bool | None,
        typer.Option(
            "--pad/--no-pad",
            help="Show the text padded to the context length. [default: only for classifiers, with a few pad tokens]",
        ),
    ] = None,
    ablate_heads: Annotated[
        bool, typer.Option("--ablate-heads", help="Measure how much the loss rises when each head is ablated.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Output: .html, .svg, .pdf or .png. [default: attention.html; none with --json]"
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show the attention maps of all heads of a model on a text."""
    from headtohead.attention_analysis import terminal
    from headtohead.attention_analysis.analysis import analyze_attention
    from headtohead.presentation.picture_files import check_picture_path

    if out is not None:
        check_picture_path(out)
    analysis = analyze_attention(
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
    output_path = analysis.save(target) if target is not None else None
    if as_json:
        print_json({**analysis.to_dict(), "file": str(output_path) if output_path else None})
    else:
        terminal.print_analysis(analysis, output_path)
