"""Drawing: the fast road gives the tokens of the slow one, and both draw from the distribution that is meant."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from headtohead.errors import ModelError
from headtohead.generation.counter_rng import (
    CounterRNG,
    derive_continuation_key,
    hash_uniforms,
    scalar_uniform_to_exponential,
    uniform_to_exponential,
)
from headtohead.generation.logits_processors import (
    GenerationState,
    LogitsProcessor,
    TemperatureLogitsProcessor,
    TopKLogitsProcessor,
    TopPLogitsProcessor,
    logits_to_probs,
)
from headtohead.generation.sampling import sample_tokens, sample_tokens_reference
from headtohead.generation.strategies import build_strategy
from headtohead.generation.token_ranks import count_above, sum_above, zero_bounds_not_above

KEYS = np.array([derive_continuation_key(0, [5, 6, 7], sample) for sample in range(32)], dtype=np.uint64)


def nobody(rows: int) -> GenerationState:
    return GenerationState([[]] * rows, [0] * rows)


def logits(rows: int, vocab: int, scale: float, seed: int = 0) -> Tensor:
    return scale * torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed))


STRATEGIES = [
    ("sample", {}),
    ("temperature", {"temperature": 0.5}),
    ("top-k", {"k": 1}),
    ("top-k", {"k": 20}),
    ("top-p", {"p": 0.7}),
    ("top-p", {"p": 0.95, "temperature": 1.5}),
    ("top-p", {"p": 0.01}),
    ("top-p", {"p": 1.0}),
    ("min-p", {"p": 0.1}),
    ("typical", {"p": 0.8}),
]


@pytest.mark.parametrize(("name", "options"), STRATEGIES)
@pytest.mark.parametrize("scale", [0.1, 2.0, 12.0])
def test_the_fast_road_gives_the_tokens_of_the_slow_one(name: str, options: dict[str, Any], scale: float) -> None:
    steps = build_strategy(name, **options).logits_processors
    for seed in range(6):
        given_logits = logits(32, 1000, scale, seed)
        fortune = hash_uniforms(KEYS, range(seed, seed + 1), 1000)[0]
        expected = sample_tokens_reference(given_logits, steps, nobody(32), fortune)
        assert sample_tokens(given_logits, steps, nobody(32), fortune) == expected


@given(
    st.lists(st.floats(-30, 30, width=32), min_size=2, max_size=40),
    st.integers(0, 2**63 - 1),
    st.one_of(st.floats(1e-4, 1.0).map(TopPLogitsProcessor), st.integers(1, 50).map(TopKLogitsProcessor)),
)
@settings(deadline=None)
def test_the_fast_road_gives_the_slow_token_for_any_logits(row: list[float], key: int, cut: LogitsProcessor) -> None:
    given_logits = torch.tensor([row])
    fortune = hash_uniforms(np.array([key], dtype=np.uint64), range(1), len(row))[0]
    slow = sample_tokens_reference(given_logits, [cut], nobody(1), fortune)
    fast = sample_tokens(given_logits, [cut], nobody(1), fortune)
    kept = logits_to_probs(given_logits, [cut])[0]
    # Rounding may decide either way whether a token on the very edge of the nucleus is inside.
    assert fast == slow or kept[fast[0]] in (0, kept[kept > 0].min()) or kept[slow[0]] == kept[kept > 0].min()


@pytest.mark.parametrize(
    "steps",
    [
        [TopPLogitsProcessor(0.7)],
        [TopPLogitsProcessor(0.9)],
        [TopKLogitsProcessor(5)],
        [],
        [TemperatureLogitsProcessor(0.5), TopPLogitsProcessor(0.8)],
    ],
    ids=repr,
)
def test_tokens_come_as_often_as_the_renormalised_distribution_says(steps: list[LogitsProcessor]) -> None:
    """Chi-square over 20,000 draws of one distribution, with a fixed seed: what the argument in `draw` proves."""
    row, draws, batch = logits(1, 30, 0.9), 20_000, 500
    counts = np.zeros(30)
    for begin in range(0, draws, batch):
        keys = np.array(
            [derive_continuation_key(1, [4], sample) for sample in range(begin, begin + batch)], dtype=np.uint64
        )
        fortune = hash_uniforms(keys, range(3, 4), 30)[0]
        np.add.at(counts, sample_tokens(row.expand(batch, -1), steps, nobody(batch), fortune), 1)
    expected = logits_to_probs(row, steps)[0].double().numpy()
    assert (counts[expected == 0] == 0).all()
    kept = expected > 0
    assert kept.sum() > 3
    assert stats.chisquare(counts[kept], draws * expected[kept] / expected.sum()).pvalue > 0.001


def test_successive_steps_are_independent() -> None:
    """Pairs of tokens of successive steps, as of two fair dice."""
    counts = np.zeros((6, 6))
    flat = torch.zeros(200, 6)
    for begin in range(0, 10_000, 200):
        keys = np.array(
            [derive_continuation_key(2, [4], sample) for sample in range(begin, begin + 200)], dtype=np.uint64
        )
        both = hash_uniforms(keys, range(2), 6)
        first, second = (sample_tokens(flat, [], nobody(200), one) for one in both)
        np.add.at(counts, (first, second), 1)
    assert stats.chisquare(counts.ravel()).pvalue > 0.001


def test_luck_is_uniform_and_never_nothing() -> None:
    found = hash_uniforms(KEYS, range(4), 5755).ravel() / 2**31
    assert found.min() > 0
    assert found.max() <= 1
    assert stats.kstest(found[:50_000], "uniform").pvalue > 0.001
    assert len(np.unique(np.sort(found)[:1000])) == 1000  # those that win races keep all their digits


def test_times_are_exponential_and_never_below_their_luck() -> None:
    fortune = hash_uniforms(KEYS, range(2), 5755).ravel()
    found = uniform_to_exponential(fortune)
    assert (found >= fortune * (1 - 1e-6)).all()
    edge = np.array([0.5, 2.0**31], dtype=np.float32)
    assert np.isfinite(uniform_to_exponential(edge)).all()
    assert uniform_to_exponential(edge).tolist() == [scalar_uniform_to_exponential(float(one)) for one in edge]
    assert stats.kstest(found[:50_000] / 2**31, "expon").pvalue > 0.001


def test_luck_is_a_function_of_key_step_and_token_alone() -> None:
    whole = hash_uniforms(KEYS, range(10), 300)
    assert np.array_equal(hash_uniforms(KEYS[3:5], range(4, 6), 300), whole[4:6, 3:5])
    assert np.array_equal(hash_uniforms(KEYS, range(10), 100), whole[..., :100])
    chance = CounterRNG([int(k) for k in KEYS], 300)
    for step in range(10):
        if step == 4:
            chance.select_rows([3, 4])
        expected = whole[step] if step < 4 else whole[step, 3:5]
        assert np.array_equal(chance.get_uniforms(step), expected)


def test_a_key_knows_seed_prompt_and_sample() -> None:
    keys = {
        derive_continuation_key(seed, prompt, n) for seed in (0, 1) for prompt in ([1, 2], [12], [2, 1]) for n in (0, 1)
    }
    assert len(keys) == 12


def test_last_digits_of_logits_do_not_change_the_winner() -> None:
    """What a batch does to logits: errors in the seventh digit. The race shrugs them off."""
    given_logits = logits(32, 5755, 2.0)
    changed = 0
    for step in range(20):
        fortune = hash_uniforms(KEYS, range(step, step + 1), 5755)[0]
        noise = 1e-6 * logits(32, 5755, 1.0, seed=step)
        one = sample_tokens(given_logits, [TopPLogitsProcessor(0.9)], nobody(32), fortune)
        other = sample_tokens(given_logits + noise, [TopPLogitsProcessor(0.9)], nobody(32), fortune)
        changed += sum(a != b for a, b in zip(one, other, strict=True))
    assert changed == 0


def test_strategies_with_the_same_seed_share_their_luck() -> None:
    """Top-p draws what plain sampling draws wherever that is in the nucleus."""
    given_logits = logits(32, 200, 2.0)
    fortune = hash_uniforms(KEYS, range(1), 200)[0]
    plain = sample_tokens(given_logits, [], nobody(32), fortune)
    cut = sample_tokens(given_logits, [TopPLogitsProcessor(0.8)], nobody(32), fortune)
    kept = logits_to_probs(given_logits, [TopPLogitsProcessor(0.8)]) > 0
    inside = [bool(kept[i, token]) for i, token in enumerate(plain)]
    assert 0 < sum(inside) < 32
    assert all(a == b for a, b, held in zip(plain, cut, inside, strict=True) if held)


@pytest.mark.parametrize("road", [sample_tokens, sample_tokens_reference])
@pytest.mark.parametrize("cut", [[], [TopPLogitsProcessor(0.9)], [TopKLogitsProcessor(3)]])
@pytest.mark.parametrize("value", [float("nan"), -float("inf")])
def test_nothing_left_to_draw_is_said(road: Any, cut: list[LogitsProcessor], value: float) -> None:
    with pytest.raises(ModelError, match="no token can be sampled"):
        road(torch.full((2, 9), value), cut, nobody(2), hash_uniforms(KEYS[:2], range(1), 9)[0])


def test_ranks_are_what_sorting_says() -> None:
    for row in logits(8, 300, 2.0).softmax(-1):
        x, at = row.numpy(), float(row[17])
        assert count_above(x, at) == int((row > at).sum())
        assert sum_above(x, at) == pytest.approx(float(row[row > at].double().sum()), abs=1e-6)
        bound = 2 * x * np.float32(0.9)
        assert np.array_equal(zero_bounds_not_above(bound, x, at), np.where(x > at, bound, 0))


def test_neighbouring_probabilities_are_told_apart_when_struck() -> None:
    for value in (1.0, 0.3, 1e-5, 1e-20, 1e-37, 1e-40):
        low = np.float32(value)
        row = np.array([low, np.nextafter(low, np.float32(2))], dtype=np.float32)
        assert np.array_equal(
            zero_bounds_not_above(2 * row, row, float(low)), np.array([0, 2 * row[1]], dtype=np.float32)
        )
