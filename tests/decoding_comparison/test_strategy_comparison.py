"""Strategies side by side: intervals, pairing, names, token by token, laws."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from scipy import stats

from headtohead.decoding_comparison import compare, limit_checks
from headtohead.decoding_comparison.compare import (
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
from headtohead.pretrained.loading import PretrainedModel
from headtohead.text_metrics.diversity import Ratio
from headtohead.verdict import scores as verdict_scores
from headtohead.verdict.compare import ErrorBudget
from headtohead.verdict.compare import compare_scores as verdict_compare

PROMPTS = 30
RNG = np.random.default_rng(3)
NOISE = RNG.normal(0, 1.0, PROMPTS)  # prompts differ much more than strategies do


def column(shift: float, jitter: float = 0.02, seed: int = 0) -> list[Ratio]:
    noise = np.random.default_rng(seed).normal(0, jitter, PROMPTS)
    return [Ratio(20 * float(3 + NOISE[i] + shift + noise[i]), 20) for i in range(PROMPTS)]


# ---- figures


def test_a_figure_of_equal_weights_is_the_mean_with_its_t_interval() -> None:
    values = [one.total / one.denominator for one in column(0)]
    found = estimate_metric("bits-per-byte", column(0))
    assert found is not None and found.interval is not None
    low, high = stats.t.interval(0.95, PROMPTS - 1, np.mean(values), stats.sem(values))
    assert found.value == pytest.approx(np.mean(values))
    assert found.interval == pytest.approx((low, high))
    perplexity = estimate_metric("perplexity", column(0))
    assert perplexity is not None
    assert perplexity.value == pytest.approx(math.exp(np.mean(values)))
    assert perplexity.interval == pytest.approx((math.exp(low), math.exp(high)))


def test_a_figure_is_total_over_total_and_its_interval_that_of_a_ratio() -> None:
    rng = np.random.default_rng(0)
    of = rng.integers(1, 40, PROMPTS)
    total = of * (2 + rng.normal(0, 0.3, PROMPTS))
    rows = [Ratio(float(a), float(b)) for a, b in zip(total, of, strict=True)]
    ratio = total.sum() / of.sum()
    found = linearize_ratios(rows)
    assert found is not None
    assert found.mean() == pytest.approx(ratio)
    # An independent road to the same spread: leave each prompt out in turn.
    left_out = np.array([(total.sum() - a) / (of.sum() - b) for a, b in zip(total, of, strict=True)])
    jackknife = math.sqrt((PROMPTS - 1) / PROMPTS * ((left_out - left_out.mean()) ** 2).sum())
    assert found.std(ddof=1) / math.sqrt(PROMPTS) == pytest.approx(jackknife, rel=0.1)


def test_an_interval_stays_inside_the_range_of_its_figure() -> None:
    rows = [Ratio(1.0, 10.0)] + [Ratio(0.0, 10.0)] * 9
    found = estimate_metric("repetition", rows)
    assert found is not None and found.interval is not None
    assert found.interval[0] == 0 < found.value < found.interval[1]


def test_one_prompt_has_a_figure_and_no_interval() -> None:
    found = estimate_metric("perplexity", [Ratio(20.0, 10.0)])
    assert found is not None
    assert (found.value, found.interval) == (pytest.approx(math.exp(2)), None)
    assert estimate_metric("repetition", [Ratio(0, 0)] * 3) is None


def sample(
    prompt: int, number: int, text: str, loss: float = 10.0, second: Likelihood | None = None
) -> ScoredContinuation:
    ids = tuple(range(len(text.split())))
    return ScoredContinuation(prompt, number, ids, text, Likelihood(loss, len(ids), len(text.encode())), second)


def test_tallies_by_hand_with_what_does_not_apply_left_out() -> None:
    samples = [
        sample(0, 0, "a b a b", 4.0),
        sample(0, 1, "a b c d", 2.0),
        sample(1, 0, "x", 1.0),
        sample(1, 1, "x", 1.0),
    ]
    found = compute_prompt_ratios(samples, 2, ["a b a b", None])
    assert found["perplexity"] == [Ratio(6.0, 8), Ratio(2.0, 2)]
    assert (found["bits-per-byte"][0].total, found["bits-per-byte"][0].denominator) == (
        pytest.approx(6 / math.log(2)),
        14,
    )
    assert found["distinct-1"] == [Ratio(4, 8), Ratio(1, 2)]
    assert found["length"] == [Ratio(8, 2), Ratio(2, 2)]
    assert (found["best-chrf"][0].total, found["best-chrf"][0].denominator) == (pytest.approx(100), 1)
    assert found["chrf"][1] == Ratio(0, 0)
    assert "scoring-bits" not in found
    alone = compute_prompt_ratios([sample(0, 0, "a b")], 1, [None])
    assert {"self-bleu", "chrf", "best-chrf"}.isdisjoint(alone)


def test_a_second_model_is_counted_per_byte() -> None:
    samples = [sample(0, i, "ab", second=Likelihood(3 * math.log(2), 5, 2)) for i in range(2)]
    (found,) = compute_prompt_ratios(samples, 1, [None])["scoring-bits"]
    assert (found.total, found.denominator) == (pytest.approx(6), 4)


# ---- pairs


def test_pairing_by_prompt_sees_what_the_noise_of_prompts_would_hide() -> None:
    columns = {"sample": column(0, seed=1), "likelier": column(-0.1, seed=2)}
    own = [estimate_metric("perplexity", rows) for rows in columns.values()]
    assert own[0] is not None and own[1] is not None and own[0].interval and own[1].interval
    assert own[1].interval[1] > own[0].interval[0], "side by side the intervals overlap"
    (pair,) = judge_strategy_pairs("perplexity", columns)
    assert (pair.strategy, pair.reference, pair.outcome) == ("likelier", "sample", "helped")
    assert pair.interval[0] < pair.effect < pair.interval[1] < 0
    assert pair.effect == pytest.approx(math.expm1(-0.1), abs=0.02)


def test_a_pair_is_judged_as_verdict_judges_it() -> None:
    one, other = column(0, seed=1), column(-0.05, seed=2)
    (pair,) = judge_strategy_pairs("perplexity", {"a": one, "b": other})
    seeds = tuple(range(PROMPTS))
    scores = [
        verdict_scores.Scores(seeds, np.array([[row.total / row.denominator] for row in rows]), np.ones(1))
        for rows in (one, other)
    ]
    budget = ErrorBudget(is_final=True)
    (judged,) = verdict_compare(
        scores[0], {"b": scores[1]}, metric="perplexity", equivalence_margin=0.01, budget=budget
    )
    assert (pair.outcome, pair.adjusted_confidence) == (judged.outcome, judged.adjusted_confidence)
    assert pair.interval == pytest.approx(judged.interval)
    assert pair.effect == pytest.approx(judged.effect)


def test_intervals_hold_for_all_pairs_at_once() -> None:
    columns = {name: column(0.01 * i, seed=i) for i, name in enumerate("abcd")}
    found = judge_strategy_pairs("bits-per-byte", columns)
    assert len(found) == 6
    assert {round(one.adjusted_confidence, 6) for one in found} == {round(1 - 0.05 / 6, 6)}, "no later analysis"
    (alone,) = judge_strategy_pairs("bits-per-byte", {name: columns[name] for name in "ab"})
    (same,) = [one for one in found if (one.strategy, one.reference) == ("b", "a")]
    assert same.interval[1] - same.interval[0] > alone.interval[1] - alone.interval[0]


def test_which_side_is_better_depends_on_the_measure() -> None:
    for name, word in (("distinct-2", "helped"), ("self-bleu", "hurt"), ("chrf", "helped"), ("bits-per-byte", "hurt")):
        size = {"self-bleu": 10, "chrf": 10}.get(name, 0.3)
        (pair,) = judge_strategy_pairs(name, {"a": column(0, seed=1), "b": column(size, seed=2)})
        assert pair.outcome == word, name
    assert judge_strategy_pairs("length", {"a": column(0), "b": column(1)}) == [], "no length is better than another"


def test_the_same_texts_make_no_practical_difference() -> None:
    (pair,) = judge_strategy_pairs("perplexity", {"a": column(0), "b": column(0)})
    assert (pair.outcome, pair.effect, pair.interval) == ("no practical difference", 0, (0, 0))


def test_one_prompt_cannot_tell() -> None:
    (pair,) = judge_strategy_pairs("perplexity", {"a": column(0)[:1], "b": column(1)[:1]})
    assert pair.outcome == "cannot tell"
    assert pair.to_json()["interval"] == [None, None]


def test_others_are_held_against_the_baseline_wherever_it_stands() -> None:
    columns = {name: {"perplexity": column(shift, seed=3)} for name, shift in (("a", 0.0), ("b", -1.0), ("c", 1.0))}
    found = compare.compare_strategies(columns, "b")
    assert [(pair.strategy, pair.reference) for pair in found] == [("a", "b"), ("c", "b"), ("c", "a")]
    assert [pair.outcome for pair in found] == ["hurt", "hurt", "hurt"]


# ---- names


def test_strategies_are_read_as_they_are_shown() -> None:
    text = "greedy,sample,temperature=0.7,top-k=20,top-p(p=0.9, temperature=0.8),nucleus=0.5,beam=3"
    found = strategy_parsing.parse_strategies(text)
    assert list(found) == [
        *("greedy", "sample", "temperature=0.7", "top-k=20", "top-p(p=0.9, temperature=0.8)", "top-p=0.5", "beam=3"),
    ]
    assert found["top-k=20"] == build_strategy("top-k", k=20)
    assert strategy_parsing.parse_strategies(",".join(found)) == found


@pytest.mark.parametrize(
    ("text", "words"),
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
def test_a_strategy_that_cannot_be_is_refused(text: str, words: str) -> None:
    with pytest.raises(StrategyError, match=words):
        strategy_parsing.parse_strategies(text)


def test_the_sweep_runs_from_greedy_to_plain_sampling_in_order() -> None:
    found = strategy_parsing.build_sweep_points(500)
    for family in strategy_parsing.SWEEP_VALUES:
        own = [point for point in found if point.family == family]
        assert [point.value for point in own] == sorted(point.value for point in own)
        assert own[0].strategy == build_strategy("greedy")
        assert sum(point.endpoint == "sample" for point in own) == 1
    assert "1000" not in [point.label for point in found], "no k beyond the vocabulary"


# ---- token by token, and laws


class Letters:
    """A tokenizer of letters: token i is a letter."""

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


def traced(model: Any, one: Strategy) -> list[dict[str, Any]]:
    return trace.build_trace(model, Letters(), "abc", one, max_new_tokens=6, seed=0)


def test_a_trace_tells_what_was_kept_and_drawn(model: PretrainedModel) -> None:
    steps = traced(model, build_strategy("top-k", k=3))
    (made,) = generate(model, ["abc"], build_strategy("top-k", k=3), max_new_tokens=6, seed=0, tokenizer=Letters())
    assert "".join(step["token"] for step in steps) == made.text
    for step in steps:
        assert step["kept"] == 3
        assert 1 <= step["rank"] <= 3
        assert sum(one["probability"] for one in step["top"]) == pytest.approx(1, abs=1e-5)
        assert sum(one["after"] for one in step["top"]) == pytest.approx(1, abs=1e-5)
        assert sum(one["count"] for one in step["top"]) == 26
        assert [one["drawn"] for one in step["top"]].count(True) == 1
        assert step["mass"] == pytest.approx(sum(one["probability"] for one in step["top"] if one["kept"]), abs=1e-5)
        assert step["after"] == pytest.approx(step["probability"] / step["mass"], abs=1e-5)


def test_a_trace_of_the_limits(model: PretrainedModel) -> None:
    assert all(
        (step["rank"], step["kept"], step["after"]) == (1, 1, 1.0) for step in traced(model, build_strategy("greedy"))
    )
    plain = traced(model, build_strategy("sample"))
    assert all(step["kept"] == 26 and step["after"] == pytest.approx(step["probability"]) for step in plain)
    assert all(step["mass"] == pytest.approx(1, abs=1e-6) for step in plain)


def test_a_trace_of_a_search_says_that_nothing_can_be_said(model: PretrainedModel) -> None:
    steps = traced(model, build_strategy("beam", beams=2))
    assert all(step["kept"] is step["mass"] is step["after"] is None for step in steps)
    assert "whole sequences" in trace.explain_missing_distribution(build_strategy("beam"))
    assert trace.explain_missing_distribution(build_strategy("top-p")) == ""


def test_the_laws_hold_and_a_broken_one_is_found_out(model: PretrainedModel) -> None:
    prompts = [[0, 1, 2], [3, 4], [5]]

    def write(one: Strategy, numbers: Sequence[int]) -> list[list[int]]:
        texts = [prompts[at] for at in numbers]
        return [list(row.ids) for row in generate(model, texts, one, max_new_tokens=8, seed=0)]

    rows = limit_checks.check_limit_invariants(model, prompts, write)
    assert len(rows) == 7
    assert all(row.passed for row in rows), rows
    assert rows[0].observation.startswith("3 of 3 the same, token for token")

    def wrong(one: Strategy, numbers: Sequence[int]) -> list[list[int]]:
        made = write(one, numbers)
        return [[*made[0][:-1], 25 - made[0][-1]], *made[1:]] if one == build_strategy("top-k", k=1) else made

    (broken,) = [row for row in limit_checks.check_limit_invariants(model, prompts, wrong) if not row.passed]
    assert broken.invariant == "k = 1 is greedy"
    assert broken.observation.startswith("2 of 3")
