"""`h2h report`, `h2h judge` and `h2h verify`: reports, verdicts on scores from other sources, and verification."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headtohead.cli.app import FormatsOption, JsonOption, app, echo, print_json, show_warnings
from headtohead.errors import RequestError

if TYPE_CHECKING:
    from headtohead.presentation.table import Table
    from headtohead.runner.verification.verify import FolderVerification, VerificationCheck

ExperimentFolderArgument = Annotated[
    Path, typer.Argument(metavar="RUNS", help="Folder of an experiment, or of a comparison by h2h versus: runs/NAME.")
]


@app.command()
def report(
    runs: ExperimentFolderArgument,
    formats: FormatsOption = None,
    out: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Output folder. [default: RUNS]")] = None,
    full: Annotated[bool, typer.Option("--full", help="Do not shorten any section in md, tex and pdf.")] = False,
    text: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Experiment file whose [[text]] blocks are added to the report as your text."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Write the report of an experiment or comparison in any format."""
    from headtohead.errors import FolderLockedError
    from headtohead.experiment import run_folder
    from headtohead.findings import compute
    from headtohead.report import write
    from headtohead.versus.comparison_folder import is_comparison_folder, open_comparison_folder
    from headtohead.versus.findings.compute import write_findings

    if is_comparison_folder(runs):
        findings = write_findings(open_comparison_folder(runs))
    else:
        experiment_runs = run_folder.open_experiment_runs(runs)
        try:
            with run_folder.lock_folder(runs):
                findings = compute.write_findings(experiment_runs)
        except FolderLockedError:
            findings = compute.compute_unfinished_findings(experiment_runs)
            echo(findings.warnings[0].message, err=True)
    with show_warnings():
        report_paths = write(runs, formats or ["html"], out, findings=findings, is_full=full, text_file=text)
    print_json([str(path) for path in report_paths]) if as_json else echo("\n".join(map(str, report_paths)))


@app.command()
def judge(
    scores: Annotated[
        Path,
        typer.Argument(
            metavar="SCORES",
            help="CSV file with the columns variant, seed and score, and optionally example, document and weight.",
        ),
    ],
    baseline: Annotated[
        str | None,
        typer.Option(metavar="VARIANT", help="Variant that the others are compared with. [default: the first]"),
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="What the scores are: perplexity, accuracy, loss, or score if higher is better. [default: inferred "
            "from the column's name]",
        ),
    ] = None,
    equivalence_margin: Annotated[
        float | None,
        typer.Option(
            metavar="X",
            help="Largest difference that is of no practical interest. [default: 0.01 for perplexity (relative) and "
            "accuracy]",
        ),
    ] = None,
    interim_analyses: Annotated[
        list[str] | None,
        typer.Option(
            "--interim-analysis",
            metavar="SEEDS[:DOCUMENTS]",
            help="Number of seeds (and of documents, if fewer) at an earlier verdict on the same variants. It has used "
            "up a share of the error rate. Repeatable.",
        ),
    ] = None,
    num_comparisons: Annotated[
        int | None,
        typer.Option(
            "--num-comparisons",
            metavar="N",
            min=1,
            help="Number of variants ever compared with the baseline; they share the error rate. [default: those in "
            "the file]",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also save a forest plot: .html, .svg, .pdf or .png.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Judge scores from any source, given as a CSV file."""
    from headtohead.report import terminal
    from headtohead.verdict.external_scores.judge_csv import judge_csv
    from headtohead.verdict.interim import parse_interim_analysis

    with show_warnings():
        verdicts = judge_csv(
            scores,
            baseline_name=baseline,
            metric=metric,
            equivalence_margin=equivalence_margin,
            earlier_analyses=[parse_interim_analysis(text) for text in interim_analyses or ()],
            num_comparisons=num_comparisons or 0,
        )
    print_json([verdict.to_dict() for verdict in verdicts]) if as_json else terminal.print_verdicts(verdicts)
    if out:
        from headtohead.report.export import export_forest_plot

        export_forest_plot(verdicts, out)


@app.command()
def verify(
    runs: Annotated[list[Path], typer.Argument(metavar="RUNS", help="Folders of experiments or comparisons.")],
    rescore: Annotated[bool, typer.Option("--rescore", help="Also evaluate and audit the saved models again.")] = False,
    isolated: Annotated[
        bool, typer.Option("--isolated", help="Also score random rows in a process that receives one token at a time.")
    ] = False,
    retrain: Annotated[
        int, typer.Option(min=0, metavar="N", help="Also train N trials again and compare them bit by bit.")
    ] = 0,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV: one row per folder.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Recompute all results, and find files that were edited.

    Nothing is trained again unless --retrain is given. With several folders, print a table with one row per folder.
    """
    from headtohead.experiment.schemas import translate_inconsistent_files_error
    from headtohead.presentation.renderers.csv_tables import render_csv
    from headtohead.presentation.renderers.terminal import StatusLine, print_table
    from headtohead.report import write
    from headtohead.runner.verification.verify import verify_experiment, verify_folder
    from headtohead.runner.verification.verify_comparison import verify_comparison
    from headtohead.versus.comparison_folder import is_comparison_folder

    def verify_one_folder(folder: Path) -> list[VerificationCheck]:
        if is_comparison_folder(folder):
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
        with translate_inconsistent_files_error(runs[0]):
            checks = verify_one_folder(runs[0]) if is_single else []
        verifications = [] if is_single else [verify_folder(folder, verify_one_folder) for folder in runs]
    if is_single:
        print_json([check.to_dict() for check in checks]) if as_json else _print_verification_checks(checks)
    elif as_json:
        print_json([verification.to_dict() for verification in verifications])
    else:
        table = _build_verification_table(verifications)
        echo(render_csv(table).rstrip("\n")) if as_csv else print_table(table)
    if not all(check.passed for check in checks) or any(verification.num_failed for verification in verifications):
        raise typer.Exit(1)


def _print_verification_checks(checks: Sequence[VerificationCheck]) -> None:
    """Print the result of `h2h verify` for one folder: each check."""
    from headtohead.presentation.renderers.terminal import get_stdout_console, print_text_table

    rows = [
        (check.location, check.description, "passed" if check.passed else "failed", check.observation)
        for check in checks
    ]
    print_text_table(("file", "check", "result", "detail"), rows)
    num_failed = sum(not check.passed for check in checks)
    get_stdout_console().print(f"{len(checks) - num_failed} checks passed, {num_failed} failed")


def _build_verification_table(verifications: Sequence[FolderVerification]) -> Table:
    """Return the table that `h2h verify` prints for several folders, with one row per folder."""
    from headtohead.presentation.table import make_table, make_text_columns

    rows = [
        (
            verification.folder,
            "failed" if verification.num_failed else "passed",
            str(len(verification.checks)),
            verification.first_problem,
        )
        for verification in verifications
    ]
    return make_table("verification", "", "", make_text_columns("folder", "result", "checks", "problem"), rows)
