"""`h2h import` and `h2h export`: exchange models with other libraries."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headtohead.cli.app import JsonOption, app, echo, print_json


@app.command(name="import")
def import_model(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE", help="Checkpoint: folder, GGUF file, hub:owner/name or name of an installed package."
        ),
    ],
    out: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Output folder. [default: imported/NAME]")] = None,
    as_json: JsonOption = False,
) -> None:
    """Convert a transformers checkpoint to a model built from parts.

    All commands accept the output folder in place of a run folder.
    """
    from headtohead.exchange.checkpoint_import import import_checkpoint

    result = import_checkpoint(source, out)
    if as_json:
        print_json(result.to_dict())
        return
    head = "" if result.has_head else ", without a head"
    echo(f"{result.folder}: {result.architecture}{head}, {result.num_parameters:,} parameters")
    echo(f"largest difference from transformers on random tokens: {result.max_difference:.1e}")


@app.command()
def export(
    run: Annotated[
        Path,
        typer.Argument(metavar="RUN", help="Run folder of a trained model, such as runs/EXPERIMENT/VARIANT/seed-0."),
    ],
    to: Annotated[
        str, typer.Option("--to", metavar="FORMAT", help="Format: transformers, onnx, gguf, transformer-lens.")
    ] = "transformers",
    out: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Output folder. [default: exported/NAME]")] = None,
    architecture: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Architecture (model_type) in transformers. [default: the first that has all parts]"
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Convert a trained model to the format of another library."""
    from headtohead.exchange.export.run_export import export_run

    result = export_run(run, to, out, model_type=architecture)
    if as_json:
        print_json(result.to_dict())
        return
    echo(f"{result.folder}: {result.architecture}")
    echo(f"largest difference of outputs on random tokens: {result.max_difference:.1e}")


@app.command()
def push(
    run: Annotated[
        Path,
        typer.Argument(metavar="RUN", help="Run folder of a trained model, such as runs/EXPERIMENT/VARIANT/seed-0."),
    ],
    repository: Annotated[str, typer.Argument(metavar="OWNER/NAME", help="Repository on the Hugging Face hub.")],
    out: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Write the files to a folder instead of uploading them.")
    ] = None,
    private: Annotated[bool, typer.Option("--private", help="Create a private repository.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Upload a trained model to the Hugging Face hub.

    The model card states the verdict.
    """
    from headtohead.exchange.export.hub import push_run

    location = push_run(run, repository, folder=out, is_private=private)
    print_json({"location": location}) if as_json else echo(location)
