"""`h2h judge`: verdicts on scores from a CSV file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headtohead.cli.app import JsonOption, app, print_json


@app.command()
def judge(
    scores: Annotated[
        Path, typer.Argument(help="CSV file: variant, seed, score; optional: example, document, weight.")
    ],
    baseline: Annotated[str | None, typer.Option(help="Baseline variant. [default: the first]")] = None,
    metric: Annotated[str | None, typer.Option(help="perplexity, accuracy, loss or score.")] = None,
    equivalence_margin: Annotated[
        float | None, typer.Option(help="Smallest difference that is of practical interest.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Also save a forest plot: .html, .svg, .pdf or .png.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Judge scores from any source: compare every variant with the baseline."""
    from headtohead.report import terminal
    from headtohead.verdict import score_csv

    verdicts = score_csv.judge_csv(scores, baseline_name=baseline, metric=metric, equivalence_margin=equivalence_margin)
    print_json([verdict.to_dict() for verdict in verdicts]) if as_json else terminal.print_verdicts(verdicts)
    if out:
        from headtohead.report.export import save_forest_plot

        save_forest_plot(verdicts, out)
