"""The section of findings.json about a sweep: the verdicts of all cells, and their summary per variant."""

from __future__ import annotations

from typing import Literal

from headtohead.experiment.schemas.base import Interval, NonNegativeInt, Record
from headtohead.verdict.record import NullableFloat, NullableInterval, Verdict


class SweepAxisFindings(Record):
    """One axis of a sweep"""

    name: str
    """corpus, size, or a dotted setting"""
    values: list[str]
    """labels of the values, in the order of the file"""


class SweepCellResult(Record):
    """One cell of a sweep"""

    name: str
    """name of its folder in `cells`"""
    coordinates: dict[str, str]
    """label of the value on each axis"""
    verdicts: list[Verdict] = []
    """one verdict for each variant; none if the cell has no findings yet"""
    steps: NonNegativeInt | None = None
    """training steps of the baseline"""
    parameters: NonNegativeInt | None = None
    """parameters of the baseline"""
    warnings: list[str] = []
    """kinds of warnings of the cell"""
    message: str = ""
    """why there are no verdicts"""
    digest: str = ""
    """SHA-256 of the findings of the cell"""


class CorpusEffect(Record):
    """The effect of a variant on one corpus, averaged over all other axes"""

    corpus: str
    """name of the corpus; empty if the sweep has no corpora"""
    effect: float
    """mean effect"""
    cells: NonNegativeInt
    """number of cells"""


class TrendLevel(Record):
    """The effect at one value of an axis, averaged over the other axes"""

    label: str
    """the value"""
    x: float
    """training steps, parameters, or the number itself"""
    effect: float
    """mean effect"""
    interval: NullableInterval
    """95 % interval, which generalizes to new seeds and new text"""


class Trend(Record):
    """How the effect of a variant changes along an axis of sizes or budgets"""

    axis: str
    """size, or a dotted setting"""
    unit: str
    """what `x` counts, such as steps"""
    corpus: str
    """name of the corpus; empty for all corpora together"""
    levels: list[TrendLevel] = []
    """effects in the order of `x`; none for all corpora together"""
    per_doubling: float
    """change of the effect if `x` doubles"""
    interval: NullableInterval
    """95 % interval of the change"""
    direction: Literal["grows", "shrinks", "stays", "cannot tell"]
    """what becomes of the effect as `x` grows"""
    unclear_from: float | None = None
    """smallest x from which on the interval of the effect includes 0, in steps of a factor of 2"""
    is_extrapolated: bool = False
    """whether `unclear_from` lies beyond the tested values"""


class SweepSummary(Record):
    """The results of all cells about one variant"""

    variant: str
    """name of the variant"""
    cells: NonNegativeInt
    """cells in which it can be compared"""
    better: NonNegativeInt
    """cells in which it is better than the baseline"""
    outcomes: dict[str, NonNegativeInt]
    """number of cells by outcome"""
    effect: NullableFloat
    """mean effect, each corpus counting once"""
    corpora: list[CorpusEffect]
    """effects by corpus, over the cells that all corpora have"""
    prediction: Interval | None = None
    """95 % prediction interval for the result on a new corpus; null below three corpora"""
    trends: list[Trend] = []
    """change of the effect along axes of sizes and budgets"""


class SweepFindings(Record):
    """The results of a sweep"""

    axes: list[SweepAxisFindings]
    """axes in the order of the file"""
    cells: list[SweepCellResult]
    """cells in the order in which they run"""
    summaries: list[SweepSummary]
    """one for each variant"""
