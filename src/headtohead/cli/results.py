"""`h2h report`, `h2h judge` and `h2h verify`: reports, verdicts on scores from other sources, and verification."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headtohead.cli.app import FormatsOption, JsonOption, app, echo, print_json, show_warnings
from headtohead.errors import RequestError

ExperimentFolderArgument = Annotated[
    Path, typer.Argument(metavar="RUNS", help="Folder of an experiment or comparison: runs/NAME.")
]


@app.command()
def report(
    runs: ExperimentFolderArgument,
    formats: FormatsOption = None,
    out: Annotated[Path | None, typer.Option(help="Output folder. [default: RUNS]")] = None,
    full: Annotated[bool, typer.Option("--full", help="Write every section in full to md, tex and pdf.")] = False,
    text: Annotated[
        Path | None, typer.Option(help="Experiment file whose [[text]] blocks are your text in the report.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Write the report of an experiment in any format."""
    from headtohead.errors import FolderLockedError
    from headtohead.experiment import run_folder
    from headtohead.findings import compute
    from headtohead.report import write
    from headtohead.versus import findings as versus_findings
    from headtohead.versus.comparison import is_comparison, open_comparison

    if is_comparison(runs):
        findings = versus_findings.write_findings(open_comparison(runs))
    else:
        experiment_runs = run_folder.open_runs(runs)
        try:
            with run_folder.lock_folder(runs):
                findings = compute.write_findings(experiment_runs)
        except FolderLockedError:
            findings = compute.compute_unfinished_findings(experiment_runs)
            echo(findings.warnings[0].message, err=True)
    with show_warnings():
        written = write(runs, formats or ["html"], out, findings=findings, is_full=full, text_file=text)
    print_json([str(path) for path in written]) if as_json else echo("\n".join(map(str, written)))


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
    earlier: Annotated[
        list[int] | None,
        typer.Option("--earlier", metavar="SEEDS", help="Number of seeds of an earlier analysis; repeatable."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Also save a forest plot: .html, .svg, .pdf or .png.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Judge scores of any origin, given as CSV."""
    from headtohead.report import terminal
    from headtohead.verdict import score_csv

    verdicts = score_csv.judge_csv(
        scores,
        baseline_name=baseline,
        metric=metric,
        equivalence_margin=equivalence_margin,
        earlier_analyses=earlier or (),
    )
    print_json([verdict.to_dict() for verdict in verdicts]) if as_json else terminal.print_verdicts(verdicts)
    if out:
        from headtohead.report.export import save_forest_plot

        save_forest_plot(verdicts, out)


@app.command()
def verify(
    runs: Annotated[list[Path], typer.Argument(metavar="RUNS...", help="Folders of experiments or comparisons.")],
    rescore: Annotated[bool, typer.Option("--rescore", help="Also score and audit the saved weights again.")] = False,
    isolated: Annotated[
        bool, typer.Option("--isolated", help="Also score random rows in a process that gets one token at a time.")
    ] = False,
    retrain: Annotated[int, typer.Option(min=0, metavar="N", help="Also retrain N trials and compare bit by bit.")] = 0,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV: one row per folder.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Recompute every figure and find edited files. With several folders, print one row for each."""
    from headtohead.experiment.schemas import report_inconsistent_data
    from headtohead.presentation.renderers.csv_tables import render_csv
    from headtohead.presentation.renderers.terminal import StatusLine, print_table
    from headtohead.report import terminal, write
    from headtohead.runner.verify import VerificationCheck, verify_experiment, verify_folder
    from headtohead.runner.verify_comparison import verify_comparison
    from headtohead.versus.comparison import is_comparison

    def verify_one(folder: Path) -> list[VerificationCheck]:
        if is_comparison(folder):
            if rescore or isolated or retrain:
                raise RequestError(
                    f"{folder} compares commands, whose models are not known; --rescore, --isolated and --retrain need "
                    "an experiment's folder"
                )
            return verify_comparison(folder, render_report=write, on_progress=status.update)
        return verify_experiment(
            folder,
            rescore=rescore,
            isolated=isolated,
            num_retrained=retrain,
            render_report=write,
            on_progress=status.update,
        )

    with StatusLine() as status:
        is_single = len(runs) == 1 and not as_csv
        with report_inconsistent_data(runs[0]):
            checks = verify_one(runs[0]) if is_single else []
        verifications = [] if is_single else [verify_folder(folder, verify_one) for folder in runs]
    if is_single:
        print_json([check.to_dict() for check in checks]) if as_json else terminal.print_verification_checks(checks)
    elif as_json:
        print_json([verification.to_dict() for verification in verifications])
    else:
        table = terminal.build_verification_table(verifications)
        echo(render_csv(table).rstrip("\n")) if as_csv else print_table(table)
    if not all(check.passed for check in checks) or any(verification.num_failed for verification in verifications):
        raise typer.Exit(1)
