"""The verb for looking: attention."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headtohead.cli.app import JsonOption, app, print_json


@app.command()
def attention(
    model: Annotated[
        str,
        typer.Argument(metavar="MODEL", help="A run folder (runs/EXPERIMENT/VARIANT/seed-0) or a pretrained model."),
    ],
    text: Annotated[str, typer.Argument(help="The text to look at.")],
    layer: Annotated[int | None, typer.Option(help="One layer only, counted from 1.")] = None,
    head: Annotated[int | None, typer.Option(help="One head only; with --layer, one large map.")] = None,
    before: Annotated[bool, typer.Option("--before", help="Before and after training, side by side.")] = False,
    against: Annotated[
        str | None, typer.Option(metavar="MODEL", help="Another model on the same text, and the difference.")
    ] = None,
    pad: Annotated[
        bool | None, typer.Option("--pad/--no-pad", help="Pad to the context. [default: a strip, for classifiers]")
    ] = None,
    silence: Annotated[
        bool, typer.Option("--silence", help="Also: how much the text's loss rises without each head.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="A .html, .svg, .pdf or .png file. [default: attention.html; none with --json]")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show where a model looks: maps of every head, what each does, and whether the maps are what they seem."""
    from headtohead.attention_analysis import api, svg, terminal

    if out is not None:
        svg.check_output_path(out)
    found = api.analyze_attention(
        model, text, before_training=before, compare_to=against, layer=layer, head=head, pad=pad, ablate_heads=silence
    )
    target = out if out is not None or as_json else Path("attention.html")
    written = found.save(target) if target is not None else None
    row = found.to_dict()
    print_json({**row, "file": str(written) if written else None}) if as_json else terminal.print_analysis(row, written)
