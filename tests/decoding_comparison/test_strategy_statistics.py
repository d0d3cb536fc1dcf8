"""Decoding comparisons: estimates and their intervals, verdicts on pairs, the sweep, traces and limit checks."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from scipy import stats

from headtohead.decoding_comparison import limit_checks, strategy_statistics, sweep
from headtohead.decoding_comparison.strategy_statistics import (
    ScoredContinuation,
    compute_prompt_ratios,
    estimate_metric,
    judge_strategy_pairs,
    linearize_ratios,
)
from headtohead.errors import StrategyError
from headtohead.generation import strategy_parsing, trace
from headtohead.generation.generate import generate
from headtohead.generation.likelihood import Likelihood
from headtohead.generation.strategies import Strategy, build_strategy
from headtohead.pretrained.pretrained_model import PretrainedModel
from headtohead.text_metrics.ngram_metrics import Ratio
from headtohead.verdict import scores as verdict_scores
from headtohead.verdict.compare import compare_scores as verdict_compare
from headtohead.verdict.interim import AlphaBudget

NUM_PROMPTS = 30
RNG = np.random.default_rng(3)
PROMPT_EFFECTS = RNG.normal(0, 1.0, NUM_PROMPTS)  # prompts differ much more than strategies


def draw_prompt_ratios(shift: float, jitter: float = 0.02, seed: int = 0) -> list[Ratio]:
    """Return the loss of each prompt, given the mean effect of a strategy."""
    noise = np.random.default_rng(seed).normal(0, jitter, NUM_PROMPTS)
    return [Ratio(20 * float(3 + PROMPT_EFFECTS[i] + shift + noise[i]), 20) for i in range(NUM_PROMPTS)]


# ---- estimates


def test_estimates_with_equal_denominators_are_means_with_t_intervals() -> None:
    values = [ratio.total / ratio.denominator for ratio in draw_prompt_ratios(0)]
    estimate = estimate_metric("bits-per-byte", draw_prompt_ratios(0))
    assert estimate is not None and estimate.interval is not None
    low, high = stats.t.interval(0.95, NUM_PROMPTS - 1, np.mean(values), stats.sem(values))
    assert estimate.value == pytest.approx(np.mean(values))
    assert estimate.interval == pytest.approx((low, high))
    perplexity = estimate_metric("perplexity", draw_prompt_ratios(0))
    assert perplexity is not None
    assert perplexity.value == pytest.approx(math.exp(np.mean(values)))
    assert perplexity.interval == pytest.approx((math.exp(low), math.exp(high)))


def test_estimates_are_ratios_of_sums_with_delta_method_intervals() -> None:
    rng = np.random.default_rng(0)
    denominators = rng.integers(1, 40, NUM_PROMPTS)
    totals = denominators * (2 + rng.normal(0, 0.3, NUM_PROMPTS))
    pairs = list(zip(totals, denominators, strict=True))
    linearized = linearize_ratios([Ratio(float(total), float(denominator)) for total, denominator in pairs])
    assert linearized is not None
    assert linearized.mean() == pytest.approx(totals.sum() / denominators.sum())
    # The jackknife is an independent estimate of the standard error: omit each prompt in turn.
    estimates = np.array([(totals.sum() - a) / (denominators.sum() - b) for a, b in pairs])
    jackknife = math.sqrt((NUM_PROMPTS - 1) / NUM_PROMPTS * ((estimates - estimates.mean()) ** 2).sum())
    assert linearized.std(ddof=1) / math.sqrt(NUM_PROMPTS) == pytest.approx(jackknife, rel=0.1)


def test_intervals_stay_inside_the_range_of_their_metric() -> None:
    prompt_ratios = [Ratio(1.0, 10.0)] + [Ratio(0.0, 10.0)] * 9
    estimate = estimate_metric("repetition", prompt_ratios)
    assert estimate is not None and estimate.interval is not None
    assert estimate.interval[0] == 0 < estimate.value < estimate.interval[1]


def test_one_prompt_has_an_estimate_without_an_interval() -> None:
    estimate = estimate_metric("perplexity", [Ratio(20.0, 10.0)])
    assert estimate is not None
    assert (estimate.value, estimate.interval) == (pytest.approx(math.exp(2)), None)
    assert estimate_metric("repetition", [Ratio(0, 0)] * 3) is None


def build_continuation(
    prompt_index: int, sample_index: int, text: str, loss: float = 10.0, second: Likelihood | None = None
) -> ScoredContinuation:
    token_ids = tuple(range(len(text.split())))
    likelihood = Likelihood(loss, len(token_ids), len(text.encode()))
    return ScoredContinuation(prompt_index, sample_index, token_ids, text, likelihood, second)


def test_prompt_ratios_by_hand_omit_metrics_that_do_not_apply() -> None:
    samples = [
        build_continuation(0, 0, "a b a b", 4.0),
        build_continuation(0, 1, "a b c d", 2.0),
        build_continuation(1, 0, "x", 1.0),
        build_continuation(1, 1, "x", 1.0),
    ]
    prompt_ratios = compute_prompt_ratios(samples, 2, ["a b a b", None])
    assert prompt_ratios["perplexity"] == [Ratio(6.0, 8), Ratio(2.0, 2)]
    assert (prompt_ratios["bits-per-byte"][0].total, prompt_ratios["bits-per-byte"][0].denominator) == (
        pytest.approx(6 / math.log(2)),
        14,
    )
    assert prompt_ratios["distinct-1"] == [Ratio(4, 8), Ratio(1, 2)]
    assert prompt_ratios["length"] == [Ratio(8, 2), Ratio(2, 2)]
    assert (prompt_ratios["best-chrf"][0].total, prompt_ratios["best-chrf"][0].denominator) == (pytest.approx(100), 1)
    assert prompt_ratios["chrf"][1] == Ratio(0, 0)
    assert "scoring-bits" not in prompt_ratios
    alone = compute_prompt_ratios([build_continuation(0, 0, "a b")], 1, [None])
    assert {"self-bleu", "chrf", "best-chrf"}.isdisjoint(alone)


def test_losses_of_the_scoring_model_are_counted_per_byte() -> None:
    samples = [build_continuation(0, i, "ab", second=Likelihood(3 * math.log(2), 5, 2)) for i in range(2)]
    (result,) = compute_prompt_ratios(samples, 1, [None])["scoring-bits"]
    assert (result.total, result.denominator) == (pytest.approx(6), 4)


# ---- pairs


def test_pairing_by_prompt_detects_effects_below_the_variation_of_prompts() -> None:
    ratios = {"sample": draw_prompt_ratios(0, seed=1), "likelier": draw_prompt_ratios(-0.1, seed=2)}
    estimates = [estimate_metric("perplexity", prompt_ratios) for prompt_ratios in ratios.values()]
    assert estimates[0] is not None and estimates[1] is not None
    assert estimates[0].interval and estimates[1].interval
    assert estimates[1].interval[1] > estimates[0].interval[0], "the unpaired intervals overlap"
    (pair,) = judge_strategy_pairs("perplexity", ratios)
    assert (pair.strategy, pair.reference, pair.outcome) == ("likelier", "sample", "helped")
    assert pair.interval[0] < pair.effect < pair.interval[1] < 0
    assert pair.effect == pytest.approx(math.expm1(-0.1), abs=0.02)


def test_verdicts_on_pairs_equal_those_of_compare_scores() -> None:
    reference, strategy = draw_prompt_ratios(0, seed=1), draw_prompt_ratios(-0.05, seed=2)
    (pair,) = judge_strategy_pairs("perplexity", {"a": reference, "b": strategy})
    seeds = tuple(range(NUM_PROMPTS))
    scores = [
        verdict_scores.Scores(seeds, np.array([[ratio.total / ratio.denominator] for ratio in ratios]), np.ones(1))
        for ratios in (reference, strategy)
    ]
    budget = AlphaBudget(is_final=True)
    (verdict,) = verdict_compare(
        scores[0], {"b": scores[1]}, metric="perplexity", equivalence_margin=0.01, budget=budget
    )
    assert (pair.outcome, pair.adjusted_confidence) == (verdict.outcome, verdict.adjusted_confidence)
    assert pair.interval == pytest.approx(verdict.interval)
    assert pair.effect == pytest.approx(verdict.effect)


def test_intervals_hold_for_all_pairs_simultaneously() -> None:
    ratios = {name: draw_prompt_ratios(0.01 * i, seed=i) for i, name in enumerate("abcd")}
    strategy_pairs = judge_strategy_pairs("bits-per-byte", ratios)
    assert len(strategy_pairs) == 6
    assert {round(pair.adjusted_confidence, 6) for pair in strategy_pairs} == {round(1 - 0.05 / 6, 6)}, (
        "there is no interim analysis"
    )
    (alone,) = judge_strategy_pairs("bits-per-byte", {name: ratios[name] for name in "ab"})
    (adjusted,) = [pair for pair in strategy_pairs if (pair.strategy, pair.reference) == ("b", "a")]
    assert adjusted.interval[1] - adjusted.interval[0] > alone.interval[1] - alone.interval[0]


def test_the_better_direction_depends_on_the_metric() -> None:
    for name, outcome in (
        ("distinct-2", "helped"),
        ("self-bleu", "hurt"),
        ("chrf", "helped"),
        ("bits-per-byte", "hurt"),
    ):
        size = {"self-bleu": 10, "chrf": 10}.get(name, 0.3)
        (pair,) = judge_strategy_pairs(
            name, {"a": draw_prompt_ratios(0, seed=1), "b": draw_prompt_ratios(size, seed=2)}
        )
        assert pair.outcome == outcome, name
    assert judge_strategy_pairs("length", {"a": draw_prompt_ratios(0), "b": draw_prompt_ratios(1)}) == [], (
        "neither a larger nor a smaller length is better"
    )


def test_equal_texts_make_no_practical_difference() -> None:
    (pair,) = judge_strategy_pairs("perplexity", {"a": draw_prompt_ratios(0), "b": draw_prompt_ratios(0)})
    assert (pair.outcome, pair.effect, pair.interval) == ("no practical difference", 0, (0, 0))


def test_one_prompt_cannot_tell() -> None:
    (pair,) = judge_strategy_pairs("perplexity", {"a": draw_prompt_ratios(0)[:1], "b": draw_prompt_ratios(1)[:1]})
    assert pair.outcome == "cannot tell"
    assert pair.to_json()["interval"] == [None, None]


def test_strategies_are_compared_with_the_baseline_regardless_of_their_order() -> None:
    ratios = {
        name: {"perplexity": draw_prompt_ratios(shift, seed=3)} for name, shift in (("a", 0.0), ("b", -1.0), ("c", 1.0))
    }
    verdicts = strategy_statistics.compare_strategies(ratios, "b")
    assert [(pair.strategy, pair.reference) for pair in verdicts] == [("a", "b"), ("c", "b"), ("c", "a")]
    assert [pair.outcome for pair in verdicts] == ["hurt", "hurt", "hurt"]


# ---- strategies as text


def test_displayed_strategies_can_be_parsed() -> None:
    text = "greedy,sample,temperature=0.7,top-k=20,top-p(p=0.9, temperature=0.8),nucleus=0.5,beam=3"
    strategies = strategy_parsing.parse_strategies(text)
    assert list(strategies) == [
        *("greedy", "sample", "temperature=0.7", "top-k=20", "top-p(p=0.9, temperature=0.8)", "top-p=0.5", "beam=3"),
    ]
    assert strategies["top-k=20"] == build_strategy("top-k", k=20)
    assert strategy_parsing.parse_strategies(",".join(strategies)) == strategies


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no strategy is given"),
        ("greedy,greedy", "greedy is given twice"),
        ("top-p=0.7,nucleus=0.7", "top-p=0.7 is given twice"),
        ("greedy=3", "greedy takes no value"),
        ("top-q=3", "no strategy named 'top-q'; did you mean"),
        ("top-p=much", "'much' is not a number"),
        ("top-p=1.5", "p must be a probability"),
        ("top-k=0", "k must be an integer"),
        ("temperature=-1", "temperature must be at least 0"),
        ("top-p(k=3)", "no option 'k'"),
    ],
)
def test_invalid_strategies_are_rejected(text: str, message: str) -> None:
    with pytest.raises(StrategyError, match=message):
        strategy_parsing.parse_strategies(text)


def test_the_sweep_runs_from_greedy_to_plain_sampling_in_order() -> None:
    sweep_points = sweep.build_sweep_points(500)
    for family in sweep.SWEEP_VALUES:
        points = [point for point in sweep_points if point.family == family]
        assert [point.value for point in points] == sorted(point.value for point in points)
        assert points[0].strategy == build_strategy("greedy")
        assert sum(point.endpoint == "sample" for point in points) == 1
    assert "1000" not in [point.label for point in sweep_points], "no k beyond the vocabulary"


# ---- traces and limit checks


class LetterTokenizer:
    """A tokenizer whose tokens are the 26 lowercase letters."""

    bos_id, eos_id, unk_id, vocab_size = None, None, None, 26

    def encode(self, text: str) -> list[int]:
        return [ord(letter) - 97 for letter in text]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(chr(97 + i) for i in ids)

    def id_to_token(self, id: int) -> str:
        return chr(97 + id)


@pytest.fixture(scope="module")
def model() -> PretrainedModel:
    torch.manual_seed(1)
    sizes = {"vocab_size": 26, "n_positions": 32, "n_embd": 16, "n_layer": 2, "n_head": 2}
    config = transformers.GPT2Config(**sizes, initializer_range=0.4, bos_token_id=0, eos_token_id=0)
    return PretrainedModel(transformers.GPT2LMHeadModel(config)).eval()


def build_model_trace(model: Any, strategy: Strategy) -> list[dict[str, Any]]:
    return trace.build_trace(model, LetterTokenizer(), "abc", strategy, max_new_tokens=6, seed=0)


def test_a_trace_contains_kept_and_sampled_tokens(model: PretrainedModel) -> None:
    steps = build_model_trace(model, build_strategy("top-k", k=3))
    (result,) = generate(
        model, ["abc"], build_strategy("top-k", k=3), max_new_tokens=6, seed=0, tokenizer=LetterTokenizer()
    )
    assert "".join(step["token"] for step in steps) == result.text
    for step in steps:
        assert step["kept"] == 3
        assert 1 <= step["rank"] <= 3
        assert sum(item["probability"] for item in step["top"]) == pytest.approx(1, abs=1e-5)
        assert sum(item["after"] for item in step["top"]) == pytest.approx(1, abs=1e-5)
        assert sum(item["count"] for item in step["top"]) == 26
        assert [item["drawn"] for item in step["top"]].count(True) == 1
        assert step["mass"] == pytest.approx(sum(item["probability"] for item in step["top"] if item["kept"]), abs=1e-5)
        assert step["after"] == pytest.approx(step["probability"] / step["mass"], abs=1e-5)


def test_traces_of_greedy_decoding_and_plain_sampling(model: PretrainedModel) -> None:
    assert all(
        (step["rank"], step["kept"], step["after"]) == (1, 1, 1.0)
        for step in build_model_trace(model, build_strategy("greedy"))
    )
    plain = build_model_trace(model, build_strategy("sample"))
    assert all(step["kept"] == 26 and step["after"] == pytest.approx(step["probability"]) for step in plain)
    assert all(step["mass"] == pytest.approx(1, abs=1e-6) for step in plain)


def test_traces_of_searches_have_no_distribution(model: PretrainedModel) -> None:
    steps = build_model_trace(model, build_strategy("beam", beams=2))
    assert all(step["kept"] is step["mass"] is step["after"] is None for step in steps)
    assert "whole sequences" in trace.explain_missing_distribution(build_strategy("beam"))
    assert trace.explain_missing_distribution(build_strategy("top-p")) == ""


def test_limit_invariants_hold_and_violations_are_detected(model: PretrainedModel) -> None:
    prompts = [[0, 1, 2], [3, 4], [5]]

    def continue_prompts(strategy: Strategy, indices: Sequence[int]) -> list[list[int]]:
        selected = [prompts[index] for index in indices]
        return [list(sample.ids) for sample in generate(model, selected, strategy, max_new_tokens=8, seed=0)]

    checks = limit_checks.check_limit_invariants(model, prompts, continue_prompts)
    assert len(checks) == 7
    assert all(check.passed for check in checks), checks
    assert checks[0].observation.startswith("3 of 3 the same, token for token")

    def continue_with_error(strategy: Strategy, indices: Sequence[int]) -> list[list[int]]:
        first, *others = continue_prompts(strategy, indices)
        if strategy == build_strategy("top-k", k=1):
            first = [*first[:-1], 25 - first[-1]]
        return [first, *others]

    checks = limit_checks.check_limit_invariants(model, prompts, continue_with_error)
    (broken,) = [check for check in checks if not check.passed]
    assert broken.invariant == "k = 1 is greedy"
    assert broken.observation.startswith("2 of 3")
