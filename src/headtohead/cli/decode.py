"""The verb that compares strategies of decoding: decode."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from headtohead.cli.app import JsonOption, app, print_json

DEFAULT_STRATEGIES = "greedy,sample,temperature=0.7,top-k=20,top-p=0.7"


@app.command()
def decode(
    model: Annotated[
        str,
        typer.Argument(metavar="MODEL", help="A run folder, a pretrained folder, a GGUF file, hub:owner/name."),
    ],
    prompts: Annotated[
        str,
        typer.Argument(
            metavar="PROMPTS",
            help="A text, or a file: .txt, .tsv, .csv, .jsonl with columns prompt, continuation.",
        ),
    ],
    strategies: Annotated[
        str, typer.Option(help="Separated by commas; NAME, NAME=VALUE or NAME(option=value, ...).")
    ] = DEFAULT_STRATEGIES,
    samples: Annotated[int, typer.Option(min=1, help="Continuations of each prompt.")] = 10,
    max_new_tokens: Annotated[int, typer.Option("--max-new-tokens", min=1, help="Tokens of a continuation.")] = 20,
    second: Annotated[
        str | None, typer.Option(metavar="MODEL", help="A second model, to say how likely it finds the texts.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Take the first so many prompts.")] = None,
    out: Annotated[Path | None, typer.Option(help="Where the files go. [default: decodings/MODEL]")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the draws.")] = 0,
    sweep: Annotated[
        bool, typer.Option("--sweep/--no-sweep", help="Also sweep temperature, k and p; takes about twice as long.")
    ] = True,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on in the same folder; only what is missing is done.")
    ] = False,
    formats: Annotated[
        list[str] | None, typer.Option("--format", help="html, md, csv, latex, svg, pdf or png; may be repeated.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Compare strategies of decoding side by side: likelihood, variety, repetition, nearness to people's text."""
    from headtohead.decoding_comparison import page as pages
    from headtohead.decoding_comparison import run_comparison, terminal
    from headtohead.presentation.files import check_formats

    check_formats(formats or ["html"])
    where = out or Path("decodings") / (Path(model).name.removeprefix("hub:").replace("/", "-") or "model")
    with terminal.DecodingProgressBar() as bar:
        try:
            found = run_comparison.run_decoding_comparison(
                model,
                prompts,
                where,
                strategies=strategies,
                num_samples=samples,
                max_new_tokens=max_new_tokens,
                scoring_model=second,
                max_prompts=limit,
                seed=seed,
                sweep=sweep,
                resume=resume,
                on_progress=bar.watch,
                command=sys.argv,
            )
        except KeyboardInterrupt:
            bar.progress.stop()
            typer.echo(f"stopped; nothing is lost: add --resume to go on ({where})", err=True)
            raise typer.Exit(130) from None
        bar.watch("drawing the report", 0, 0)
        written = pages.write_report(where, formats or ["html"])
    if as_json:
        print_json({**found, "folder": str(where), "written": [str(path) for path in written]})
    else:
        terminal.print_comparison(found, str(where), str(written[0]))
    if not all(one["passed"] for one in found["laws"]):
        raise typer.Exit(1)
