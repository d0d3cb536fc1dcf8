"""Scores per seed and example, and their pairing.

Each score is a total and a weight (summed negative log-likelihood and tokens, or 0/1 and 1), because perplexity is
exp(total loss / total tokens), not a mean of perplexities. Bits per byte use bytes as weights. Two variants are
compared on the same examples and on the seeds that both have. If they have no seed in common, their runs are compared
without pairing; pairing is never chosen by which interval is narrower, because that raises the error rate to as much as
6.8 %.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from jaxtyping import Float, Int

from headtohead.errors import ScoresError


@dataclass(frozen=True, eq=False)
class Scores:
    """The scores of one variant, or of the baseline.

    `values` (seeds, examples) holds totals: summed negative log-likelihood, or correct answers. `weights` (examples)
    holds the number of tokens or bytes that each total covers, or ones. A single column means that only one score per
    seed is known. `examples` optionally names the columns, so that scores of different examples are not paired by
    accident. `documents` names the document that each example belongs to; it is empty if every example is its own
    document. `lost` holds the seeds of runs that diverged or learned nothing, which have no scores. `resolution` is the
    rounding step of the scores; if it is None and only one score per seed is known, it is inferred.
    """

    seeds: tuple[int, ...]
    values: np.ndarray  # (seeds, examples); validated below, since users pass these
    weights: np.ndarray  # (examples,)
    examples: tuple[str, ...] = ()
    documents: tuple[str, ...] = ()
    lost: tuple[int, ...] = ()
    resolution: float | None = None

    def __post_init__(self) -> None:
        """Convert totals and weights to arrays; raise ScoresError with all errors in the scores."""
        values = _to_float_array("values", self.values)
        weights = _to_float_array("weights", self.weights)
        errors = _find_array_errors(self.seeds, values, weights, self.examples, self.lost)
        if self.documents and len(self.documents) != weights.size:
            errors.append(f"{len(self.documents)} document names for {weights.size} weights")
        if errors:
            raise ScoresError("invalid scores: " + "; ".join(errors))
        for name, array in (("values", values), ("weights", weights)):
            array.setflags(write=False)
            object.__setattr__(self, name, array)
        for name in ("seeds", "lost"):
            object.__setattr__(self, name, tuple(int(seed) for seed in getattr(self, name)))
        object.__setattr__(self, "examples", tuple(str(example) for example in self.examples))
        object.__setattr__(self, "documents", tuple(str(document) for document in self.documents))

    def compute_seed_means(self) -> Float[np.ndarray, " seeds"]:
        """Return total value / total weight for each seed."""
        return np.asarray(self.values.sum(axis=1) / self.weights.sum())

    def aggregate_per_seed(self) -> Scores:
        """Return one score per seed, as a single example."""
        means = self.compute_seed_means()[:, None]
        resolution = self.resolution if len(self.weights) == 1 else 0.0
        return Scores(self.seeds, means, np.ones(1), lost=self.lost, resolution=resolution)

    def select_seeds(self, seeds: Sequence[int]) -> Scores:
        """Return the scores of the given seeds, in the given order, with all lost runs."""
        row_index = {seed: index for index, seed in enumerate(self.seeds)}
        return replace(self, seeds=tuple(seeds), values=self.values[[row_index[seed] for seed in seeds]])


@dataclass(frozen=True, eq=False)
class ScorePair:
    """Scores of the baseline and of a variant on the same examples, and on the same seeds if `is_paired`."""

    baseline: Scores
    variant: Scores
    is_paired: bool
    documents: Int[np.ndarray, " examples"]
    """number of the document of each example, from 0"""

    @property
    def common_seeds(self) -> list[int]:
        """Seeds for which both the baseline and the variant have scores."""
        return sorted(set(self.baseline.seeds) & set(self.variant.seeds))

    @property
    def unused_seeds(self) -> list[int]:
        """Seeds that only the baseline or only the variant has run, so that they have no partner."""
        if not self.is_paired:
            return []
        baseline_runs, variant_runs = ({*scores.seeds, *scores.lost} for scores in (self.baseline, self.variant))
        return sorted((baseline_runs ^ variant_runs) - {*self.baseline.lost, *self.variant.lost})

    @cached_property
    def totals(
        self,
    ) -> tuple[Float[np.ndarray, "baseline_seeds examples"], Float[np.ndarray, "variant_seeds examples"]]:
        """Totals of the baseline and the variant, restricted to the common seeds if the scores are paired."""
        if not self.is_paired:
            return self.baseline.values, self.variant.values
        baseline_totals, variant_totals = (
            scores.values[[scores.seeds.index(seed) for seed in self.common_seeds]]
            for scores in (self.baseline, self.variant)
        )
        return baseline_totals, variant_totals

    @property
    def weights(self) -> Float[np.ndarray, " examples"]:
        """Weights of the examples, which are the same for baseline and variant."""
        return self.variant.weights

    @property
    def num_seeds(self) -> int:
        """Number of pairs or, without pairing, the smaller number of seeds."""
        return min(len(totals) for totals in self.totals)

    @property
    def num_analyzed_seeds(self) -> int:
        """Number of seeds that both the baseline and the variant have run, including lost runs."""
        return min(len(run_scores) for run_scores in self.list_run_scores(higher_is_better=True))

    @property
    def resolution(self) -> float:
        """Rounding step of the scores, or 0 if they are not rounded."""
        resolutions = [scores.resolution for scores in (self.baseline, self.variant) if scores.resolution is not None]
        if resolutions or self.num_examples > 1:
            return max(resolutions, default=0.0)
        return infer_resolution(self.baseline.values[:, 0].tolist(), self.variant.values[:, 0].tolist())

    @property
    def num_examples(self) -> int:
        return len(self.weights)

    @property
    def num_documents(self) -> int:
        return int(self.documents.max()) + 1

    def sum_by_document(self, values: Float[np.ndarray, "*rows examples"]) -> Float[np.ndarray, "*rows documents"]:
        """Return the values summed per document."""
        order = np.argsort(self.documents, kind="stable")
        document_starts = np.flatnonzero(np.diff(self.documents[order], prepend=-1))
        return np.asarray(np.add.reduceat(values[..., order], document_starts, axis=-1))

    def list_run_scores(
        self, *, higher_is_better: bool
    ) -> tuple[Float[np.ndarray, " baseline_runs"], Float[np.ndarray, " variant_runs"]]:
        """Return the scores of all baseline and variant runs, with higher being better and NaN for lost runs.

        If the scores are paired, only seeds that both have run are included, in the same order.
        """
        sign = 1 if higher_is_better else -1
        baseline_by_seed, variant_by_seed = (
            dict.fromkeys(scores.lost, np.nan)
            | dict(zip(scores.seeds, (sign * scores.compute_seed_means()).tolist(), strict=True))
            for scores in (self.baseline, self.variant)
        )
        seeds = baseline_by_seed.keys() | variant_by_seed.keys()
        if self.is_paired:
            seeds = baseline_by_seed.keys() & variant_by_seed.keys()
        baseline_scores, variant_scores = (
            np.array([score_by_seed[seed] for seed in sorted(seeds & score_by_seed.keys())])
            for score_by_seed in (baseline_by_seed, variant_by_seed)
        )
        return baseline_scores, variant_scores


def pair_scores(variant_name: str, baseline: Scores, variant: Scores) -> ScorePair:
    """Pair the baseline's and the variant's scores by seed and example.

    Seeds that only one of the two has are dropped, unless the two have no seed in common. Raise ScoresError if the
    examples differ.
    """
    if 1 in (len(baseline.weights), len(variant.weights)):
        baseline, variant = baseline.aggregate_per_seed(), variant.aggregate_per_seed()
    _check_same_examples(variant_name, baseline, variant)
    document_names = baseline.documents or variant.documents or range(len(baseline.weights))
    documents = np.unique(document_names, return_inverse=True)[1]
    is_paired = not {*baseline.seeds, *baseline.lost}.isdisjoint({*variant.seeds, *variant.lost})
    return ScorePair(baseline, variant, is_paired, documents)


MAX_DECIMALS = 6
"""number of decimals above which scores are not considered rounded"""


def infer_resolution(*score_lists: Sequence[float]) -> float:
    """Return `Scores.resolution`, the rounding step of scores, inferred from their decimals and from ties.

    0 if the scores are not rounded.
    """
    decimal_steps = [_infer_decimal_step(scores) for scores in score_lists]
    pooled_scores = [score for scores in score_lists for score in scores]
    distinct_scores = np.unique(pooled_scores)
    if not any(decimal_steps) and any(score % 1 for score in pooled_scores):
        return 0.0
    has_ties = 1 < len(distinct_scores) < len(pooled_scores)
    return max([*decimal_steps, float(np.diff(distinct_scores).min()) if has_ties else 0.0])


def _infer_decimal_step(scores: Sequence[float]) -> float:
    """Return 0.01 for scores with two decimals; 0 for integers, which may be exact, and for many decimals."""
    formatted = [f"{score:.{MAX_DECIMALS + 1}f}".rstrip("0") for score in scores]
    num_decimals = max((len(number.partition(".")[2]) for number in formatted), default=0)
    return 10.0**-num_decimals if 0 < num_decimals <= MAX_DECIMALS else 0.0


def _check_same_examples(variant_name: str, baseline: Scores, variant: Scores) -> None:
    """Raise ScoresError unless the baseline and the variant are scored on the same examples with the same weights."""
    if len(baseline.weights) != len(variant.weights):
        raise ScoresError(
            f"{variant_name}: scored on {len(variant.weights)} examples, but the baseline on {len(baseline.weights)}; "
            "both must be scored on the same examples"
        )
    if baseline.examples and variant.examples and baseline.examples != variant.examples:
        index = next(
            position
            for position, (baseline_id, variant_id) in enumerate(zip(baseline.examples, variant.examples, strict=True))
            if baseline_id != variant_id
        )
        raise ScoresError(
            f"{variant_name}: example {index} is {variant.examples[index]!r}, but {baseline.examples[index]!r} for the "
            "baseline; both must be scored on the same examples in the same order"
        )
    if baseline.documents and variant.documents and baseline.documents != variant.documents:
        raise ScoresError(f"{variant_name}: its examples belong to other documents than those of the baseline")
    if not np.array_equal(baseline.weights, variant.weights):
        index = int(np.flatnonzero(baseline.weights != variant.weights)[0])
        raise ScoresError(
            f"{variant_name}: example {index} has weight {variant.weights[index]:g}, but {baseline.weights[index]:g} "
            "for the baseline; both must be scored on the same examples (if tokenizers differ, use bytes as weights)"
        )


def _to_float_array(name: str, array_like: object) -> Float[np.ndarray, "..."]:
    """Convert scores to a float64 array; raise ScoresError if that is not possible."""
    try:
        return np.array(array_like, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ScoresError(f"{name} must be an array of numbers: {error}") from error


def _find_array_errors(
    seeds: Sequence[int],
    totals: Float[np.ndarray, "..."],
    weights: Float[np.ndarray, "..."],
    example_ids: Sequence[str],
    lost: Sequence[int],
) -> list[str]:
    """Return a message for each error in the arguments of `Scores`: seeds, shapes and values that are not finite."""
    errors = []
    if not seeds and not lost:
        errors.append("no seeds")
    runs = [*seeds, *lost]
    if len(set(runs)) != len(runs):
        duplicates = sorted({seed for seed in runs if runs.count(seed) > 1})
        errors.append(f"seed {', '.join(map(str, duplicates))} occurs more than once")
    if weights.ndim != 1 or not weights.size:
        errors.append(f"weights must have the shape (examples,), got {weights.shape}")
    elif not (np.isfinite(weights).all() and (weights > 0).all()):
        index = int(np.flatnonzero(~(np.isfinite(weights) & (weights > 0)))[0])
        errors.append(f"weights must be finite and positive, but example {index} has weight {weights[index]:g}")
    if totals.shape != (len(seeds), weights.size):
        errors.append(
            f"values must have the shape {(len(seeds), weights.size)} for {len(seeds)} seeds and {weights.size} "
            f"examples, got {totals.shape}"
        )
    elif not np.isfinite(totals).all():
        row, column = (int(position) for position in np.argwhere(~np.isfinite(totals))[0])
        count = int((~np.isfinite(totals)).sum())
        errors.append(f"{count} values are not finite, the first at seed {seeds[row]}, example {column}")
    if example_ids and len(example_ids) != weights.size:
        errors.append(f"{len(example_ids)} example names for {weights.size} weights")
    return errors
