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
        typer.Argument(metavar="MODEL", help="Run folder, folder of a pretrained model, GGUF file or hub:owner/name."),
    ],
    prompts: Annotated[
        str,
        typer.Argument(
            metavar="PROMPTS",
            help="A single prompt, or a .txt, .tsv, .csv or .jsonl file with the columns prompt and, for human text to "
            "compare with, continuation.",
        ),
    ],
    strategies: Annotated[
        str,
        typer.Option(
            metavar="LIST", help="Decoding strategies, comma-separated: NAME, NAME=VALUE or NAME(option=value, ...)."
        ),
    ] = DEFAULT_STRATEGIES,
    samples: Annotated[int, typer.Option(metavar="N", min=1, help="Number of continuations per prompt.")] = 10,
    max_new_tokens: Annotated[
        int, typer.Option("--max-new-tokens", metavar="N", min=1, help="Number of tokens per continuation.")
    ] = 20,
    scoring_model: Annotated[
        str | None, typer.Option(metavar="MODEL", help="Second model, which also scores the generated texts.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, metavar="N", help="Use only the first N prompts.")] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Output folder. [default: decodings/MODEL]")
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", help="Random seed for sampling.")] = 0,
    sweep: Annotated[
        bool,
        typer.Option(
            "--sweep/--no-sweep", help="Also vary temperature, k and p over a range; takes about twice as long."
        ),
    ] = True,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue an interrupted comparison in the same folder.")
    ] = False,
    formats: FormatsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare decoding strategies of a language model.

    The report compares the likelihood, diversity and repetition of the generated texts, and their similarity to human
    text.
    """
    from headtohead.decoding_comparison.page import write_decoding_report
    from headtohead.decoding_comparison.run_decoding_comparison import run_decoding_comparison
    from headtohead.decoding_comparison.terminal import print_decoding_comparison
    from headtohead.presentation.output_files import check_output_formats
    from headtohead.progress import ProgressUpdate, StderrProgress

    check_output_formats(formats or ["html"])
    folder = out or Path("decodings") / (Path(model).name.removeprefix("hub:").replace("/", "-") or "model")
    on_progress = StderrProgress()
    try:
        results = run_decoding_comparison(
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
        report_paths = write_decoding_report(folder, formats or ["html"])
    if as_json:
        print_json({**results.to_json(), "folder": str(folder), "written": [str(path) for path in report_paths]})
    else:
        print_decoding_comparison(results, str(folder), str(report_paths[0]))
    if not all(check.passed for check in results.limit_checks):
        raise typer.Exit(1)
