"""`h2h decode`: compare decoding strategies."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from headtohead.cli.app import FormatsOption, JsonOption, app, echo, print_json, show_warnings

DEFAULT_STRATEGIES = "greedy,sample,temperature=0.7,top-k=20,top-p=0.7"


@app.command()
def decode(
    model: Annotated[
        str,
        typer.Argument(metavar="MODEL", help="Run folder, pretrained folder, GGUF file or hub:owner/name."),
    ],
    prompts: Annotated[
        str,
        typer.Argument(
            metavar="PROMPTS",
            help="Text, or .txt, .tsv, .csv or .jsonl file with columns prompt, continuation.",
        ),
    ],
    strategies: Annotated[
        str, typer.Option(help="Comma-separated: NAME, NAME=VALUE or NAME(option=value, ...).")
    ] = DEFAULT_STRATEGIES,
    samples: Annotated[int, typer.Option(min=1, help="Continuations per prompt.")] = 10,
    max_new_tokens: Annotated[int, typer.Option("--max-new-tokens", min=1, help="Tokens per continuation.")] = 20,
    scoring_model: Annotated[
        str | None, typer.Option(metavar="MODEL", help="Second model, to score the generated texts.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, metavar="N", help="Use the first N prompts only.")] = None,
    out: Annotated[Path | None, typer.Option(help="Output folder. [default: decodings/MODEL]")] = None,
    seed: Annotated[int, typer.Option(help="Sampling seed.")] = 0,
    sweep: Annotated[
        bool, typer.Option("--sweep/--no-sweep", help="Also sweep temperature, k and p; about twice as slow.")
    ] = True,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue an interrupted comparison in the same folder.")
    ] = False,
    formats: FormatsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare decoding strategies.

    Metrics: likelihood, diversity, repetition, and similarity to human text.
    """
    from headtohead.decoding_comparison import page as pages
    from headtohead.decoding_comparison import run_comparison, terminal
    from headtohead.presentation.files import check_formats
    from headtohead.progress import ProgressUpdate, StderrProgress

    check_formats(formats or ["html"])
    folder = out or Path("decodings") / (Path(model).name.removeprefix("hub:").replace("/", "-") or "model")
    on_progress = StderrProgress()
    try:
        comparison = run_comparison.run_decoding_comparison(
            model,
            prompts,
            folder,
            strategies=strategies,
            num_samples=samples,
            max_new_tokens=max_new_tokens,
            scoring_model=scoring_model,
            max_prompts=limit,
            seed=seed,
            sweep=sweep,
            resume=resume,
            on_progress=on_progress,
            command=sys.argv,
        )
    except KeyboardInterrupt:
        echo(f"interrupted: continue with --resume ({folder})", err=True)
        raise typer.Exit(130) from None
    on_progress(ProgressUpdate("rendering the report", 0, 0))
    with show_warnings():
        written = pages.write_report(folder, formats or ["html"])
    if as_json:
        print_json({**comparison.to_json(), "folder": str(folder), "written": [str(path) for path in written]})
    else:
        terminal.print_comparison(comparison, str(folder), str(written[0]))
    if not all(check.passed for check in comparison.limit_checks):
        raise typer.Exit(1)
