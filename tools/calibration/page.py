"""docs/calibration.md: every figure on it is computed from cached results."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from scipy import stats

from headtohead.verdict.decision_rule import HELPED, HURT, NO_PRACTICAL_DIFFERENCE
from headtohead.verdict.interim import compute_interim_confidence

from . import advice, cli_runs, collapse, document_advice, power
from .aa_training import DOCUMENT_COUNTS, EXAMPLES, SEEDS
from .advice import EFFECT_LIMITS, AdviceRow
from .collapse import CollapseRow
from .coverage import DRAWS, REFINED_DRAWS
from .document_advice import DocumentAdviceRow
from .false_verdicts import LOST_SHARE, VARIANT_COUNTS, FalseVerdictRow, FamilyRow
from .markdown import format_range, format_share, format_table
from .power import EFFECTS, PairingRow, SharedVarianceRow
from .rule_version import compute_interval_version, compute_verdict_version


def wrap_prose(text: str) -> str:
    """Return Markdown with the lines of every paragraph filled; tables and headings are kept."""
    blocks = text.split("\n\n")
    return "\n\n".join(_wrap_block(block) for block in blocks)


def _wrap_block(block: str) -> str:
    heading, _, body = block.partition("\n") if block.startswith("#") else ("", "", block)
    if body and not body.startswith("|"):
        body = textwrap.fill(body, 120, break_long_words=False, break_on_hyphens=False)
    return "\n".join(filter(None, [heading, body]))


def format_false_verdicts(rows: Sequence[FalseVerdictRow]) -> str:
    """Return how often A/A experiments end in "helped" or "hurt"."""
    note = f"""Both sides differ only in a rotation of the heads before the output projection, which absorbs it.
Each experiment has
its own {SEEDS} seeds per side and its own draw of {_join(DOCUMENT_COUNTS)} test documents with {EXAMPLES}
examples. No training
serves two experiments of a row. `auto` and advice use the error budget of the journal; advice is followed until
the verdict
is settled, no number of seeds is advised, or {SEEDS} seeds are used. "Lost" removes the worst
{100 * LOST_SHARE:.0f} % of
the variant's
runs as diverged; false "helped" is the error there. A margin of 0 is the strictest case. The error of a single analysis
with few seeds is below 5 % because later analyses may follow.
"""
    table = format_table(
        [
            "experiments",
            "margin",
            "number",
            "helped",
            "hurt",
            "false verdicts",
            "95 % interval",
            "equivalent",
            "seeds used",
        ],
        (
            (
                f"{row.kind}, {row.procedure}",
                f"{row.margin:g}",
                f"{row.experiments:,}",
                row.helped,
                row.hurt,
                format_share(row.share),
                _format_interval(row.interval),
                row.equivalent,
                f"{row.seeds_used:.1f}",
            )
            for row in rows
        ),
    )
    highest = max(rows, key=lambda row: row.share)
    conclusion = f"Highest rate: {format_share(highest.share)} ({highest.kind}, {highest.procedure})."
    return "\n".join([note, table, f"{conclusion} {_format_target(rows)}\n"])


def format_families(rows: Sequence[FamilyRow]) -> str:
    """Return the familywise error by number of variants."""
    note = """All runs of an A/A experiment are exchangeable. They are divided between a baseline and several
variants; a false verdict is
"helped" or "hurt" for at least one of them, with a margin of 0.
"""
    table = format_table(
        ["experiments", "number", "variants", "seeds", "false verdicts", "95 % interval"],
        (
            (
                row.kind,
                f"{row.experiments:,}",
                row.variants,
                row.seeds,
                format_share(row.share),
                _format_interval(row.interval),
            )
            for row in rows
        ),
    )
    return "\n".join([note, table, f"{_format_target(rows)}\n"])


def _format_target(rows: Sequence[FalseVerdictRow | FamilyRow | CollapseRow | DocumentAdviceRow]) -> str:
    misses = sum(row.misses_target for row in rows)
    return f"{misses or 'No'} row{'' if misses == 1 else 's'} above 5 % by more than the binomial error."


def format_commands(rows: Sequence[dict[str, Any]]) -> str:
    """Return the verdicts that `h2h run` and `h2h run --resume` printed."""
    note = f"""Experiment files, `h2h run --seeds {cli_runs.FIRST_SEEDS} --json`, then `--resume` with the advised
seeds, at most
{cli_runs.MAX_SEEDS}; without advice, {cli_runs.SEEDS_ADDED_BY_HAND} seeds are added by hand. The commands number
seeds from 0, so
experiments differ in their training sentences and test documents instead of their seeds.
"""
    lines = []
    for kind in dict.fromkeys(row["kind"] for row in rows):
        members = [row for row in rows if row["kind"] == kind]
        last = [row["verdicts"][-1] for row in members]
        false = last.count(HELPED) + last.count(HURT)
        interval = stats.binomtest(false, len(last)).proportion_ci()
        lines.append(
            [
                kind,
                len(members),
                sum(len(row["verdicts"]) for row in members),
                sum(len(row["verdicts"]) > 1 for row in members),
                false,
                f"{format_share(false / len(last))} ({_format_interval((interval.low, interval.high))})",
                last.count(NO_PRACTICAL_DIFFERENCE),
            ]
        )
    head = ["kind", "experiments", "commands", "resumed", "helped or hurt", "share", "equivalent"]
    return "\n".join([note, format_table(head, lines)])


def format_collapse(rows: Sequence[CollapseRow]) -> str:
    """Return coverage and false verdicts if some runs learn nothing."""
    note = f"""A share of all runs collapses, at random and on both sides alike, to a score
{collapse.COLLAPSED_SCORE:g} standard deviations off; runs with the same seed have a correlation of
{collapse.CORRELATION:g}. The mean over all runs cannot be covered (third column, 95 % interval, where only the variant
collapses): few seeds often miss the collapse. Collapsed runs are lost runs instead. The interval, with the confidence
of a first analysis, describes the runs that learn; the failure rate has its own 95 % bound; ranks decide where many
runs are lost.
"""
    table = format_table(
        [
            "runs that collapse",
            "seeds",
            "mean over all runs covered",
            "judged by an interval",
            "confidence of the interval",
            "interval covers",
            "failure rate covered",
            "false verdicts",
        ],
        (
            (
                f"{row.share:.0%}",
                row.seeds,
                format_share(row.mean_covered / row.experiments),
                format_share(row.with_interval / row.experiments),
                format_share(compute_interim_confidence(row.seeds)),
                format_share(row.covered / row.with_interval) if row.with_interval else "",
                format_share(row.bound_covered / row.experiments),
                format_share(row.false / row.experiments),
            )
            for row in rows
        ),
    )
    return "\n".join([note, table, f"{_format_target(rows)}\n"])


def format_advice(rows: Sequence[AdviceRow]) -> str:
    """Return how often advice was true."""
    advised, true = (sum(getattr(row, name) for row in rows) for name in ("advised", "true"))
    note = f"""True differences are normal around 0 with the standard deviation of the paired difference of one
seed; the margin is
{advice.MARGIN:g} of it. Open verdicts with advice got what was advised and were judged again. Advice for up to
{advice.MAX_ADDED_UNITS:,} units was followed. It was true in {format_share(true / advised)} of {advised:,} cases
(target: 75 to 85 %).
At a fixed difference it cannot be true in 80 % of cases: the columns show it by true difference in standard deviations.
"""
    limits = [
        "below 0.25",
        *(f"{low:g} to {high:g}" for low, high in pairwise(EFFECT_LIMITS[:-1])),
    ]
    head = ["advice", "first seeds", "settled at once", "advised", "true", *limits, f"above {EFFECT_LIMITS[-2]:g}"]
    lines = [
        [
            row.setting,
            row.first_seeds,
            f"{row.settled_at_once} of {row.experiments}",
            row.advised,
            format_share(row.true / row.advised) if row.advised else "",
            *(f"{true} of {count}" for true, count in zip(row.true_by_effect, row.advised_by_effect, strict=True)),
        ]
        for row in rows
    ]
    return "\n".join([note, format_table(head, lines)])


def format_document_advice(rows: Sequence[DocumentAdviceRow]) -> str:
    """Return how often verdicts are false if the documents that they ask for are added."""
    note = f"""The true difference is 0. The first analysis has {document_advice.FIRST_DOCUMENTS} documents. Then the
same runs are scored on the advised documents, until the verdict is settled, none are advised, or
{document_advice.MAX_DOCUMENTS:,} documents are used. The margin is {document_advice.MARGIN:g} of the true standard
error of the first analysis.
"""
    table = format_table(
        [
            *("simulation", "seeds", "number", "false verdicts", "95 % interval", "equivalent", "analyses"),
            "median documents",
        ],
        (
            (
                row.simulation,
                row.seeds,
                f"{row.experiments:,}",
                format_share(row.false / row.experiments),
                _format_interval(row.interval),
                row.equivalent,
                f"{row.analyses:.1f}",
                f"{row.documents:,.0f}",
            )
            for row in rows
        ),
    )
    return "\n".join([note, table, f"{_format_target(rows)}\n"])


def _join(values: Sequence[int]) -> str:
    return f"{', '.join(map(str, values[:-1]))} or {values[-1]}"


def _format_interval(interval: tuple[float, float]) -> str:
    return f"{100 * interval[0]:.1f} to {100 * interval[1]:.1f}"


def format_shared_variance(rows: Sequence[SharedVarianceRow]) -> str:
    """Return familywise error and seeds needed by method."""
    base = rows[0]
    head = ["method", *(f"error, {title}" for title in power.ANALYSES), *(f"{e:g} sd" for e in EFFECTS)]
    lines = []
    for row in rows:
        errors = [format_range([by[title] for by in row.familywise_error.values()]) for title in power.ANALYSES]
        needed = [
            f"{row.seeds_needed[f'{effect:g}']:.1f} "
            f"({100 * (row.seeds_needed[f'{effect:g}'] / base.seeds_needed[f'{effect:g}'] - 1):+.0f} %)"
            for effect in EFFECTS
        ]
        lines.append([row.method, *errors, *needed])
    note = f"""{power.NUM_VARIANTS} variants with one baseline. A variance that borrows from the other variants
(empirical Bayes; Smyth 2004) could save seeds. The bar: at least 30 % fewer seeds for a power of 80 %, at a familywise
error of at most 6 % if standard deviations differ by up to a factor e. Columns: familywise error, lowest to highest
over the spreads of the standard deviations, of a first analysis and of four analyses together, each at the confidence
of the rule; seeds of a first analysis by true difference in standard deviations, which are uniform in the logarithm.
"""
    return "\n".join([note, format_table(head, lines), SHARED_VARIANCE_CONCLUSION])


def format_pairing(rows: Sequence[PairingRow]) -> str:
    """Return errors and widths of paired and unpaired tests."""
    head = ["correlation", "seeds", "paired error", "unpaired error", "narrower of both", "paired width / unpaired"]
    note = """Taking the narrower of both intervals after the fact makes too many errors. Scores are paired unless
the two sides have no
seed in common.
"""
    table = format_table(
        head,
        (
            (
                f"{row.correlation:g}",
                row.seeds,
                format_share(row.paired_error),
                format_share(row.unpaired_error),
                format_share(row.narrower_error),
                f"{row.paired_width / row.unpaired_width:.2f}",
            )
            for row in rows
        ),
    )
    return f"{note}\n{table}"


def format_versions(counts: Mapping[str, tuple[int, int]]) -> str:
    """Return which studies were measured with an earlier version of the verdict rule."""
    note = f"""{VERSION_SENTENCE.format(verdicts=compute_verdict_version(), intervals=compute_interval_version())} A
study is up to date if the rule still gives the same numbers on fixed experiments. Coverage depends on the intervals
alone.
"""
    rows = [(study, known, known - stale, stale) for study, (stale, known) in counts.items()]
    return "\n".join([note, format_table(["study", "results", "of this rule", "of an earlier rule"], rows)])


SHARED_VARIANCE_CONCLUSION = """No method meets the bar, so every variant keeps its own variance. Two prior degrees
of freedom keep the error of all analyses below 5 %, but save 30 % at none of these differences. More borrowing saves
30 % only of differences of 3 standard deviations, and errs in more than 6 %. Even with a known variance, which nobody
has, 30 % are out of reach for differences of one standard deviation.
"""

VERSION_SENTENCE = "Version of the verdicts: {verdicts}; of the intervals: {intervals}."
BINOMIAL_ERROR = 196 * (0.95 * 0.05 / DRAWS) ** 0.5
"""in points, of a share of 95 % of `DRAWS`"""

LIMITS = f"""Falls short: heavy-tailed documents cover more than 97 % in some cells from 10 documents on, skewed ones
too little up to 10. Not measured: more than {max(VARIANT_COUNTS)} variants on real trainings; own seeds through the
command line, which numbers seeds from 0; advice beyond {SEEDS} seeds on real trainings. Advice on documents is rare
in these settings, so that its share is known only roughly.
"""

INTRODUCTION = f"""# Calibration

How often are verdicts wrong? `make calibration` writes this page from trainings and simulations, all judged by the
code that
judges experiments. Bars: coverage of the 95 % interval for new seeds and new documents of at least 93 % with 2 to
9 documents
and 93.5 to 97 % from 10; false verdicts of at most 5 %, binomial error allowed. Cells that miss a bar are listed.

Shares of {DRAWS:,} draws have a binomial error of ±{BINOMIAL_ERROR:.1f} points at 95 %. Cells that miss their bar at
{DRAWS:,} draws are measured again with {REFINED_DRAWS:,}. Half widths are in true standard errors.
"""
