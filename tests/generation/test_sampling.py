"""Sampling: the fast implementation returns the tokens of the reference, and both follow the intended distribution."""

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
)
from headtohead.generation.sampling import (
    _remove_unlikelier_tokens,
    compute_sampling_probs,
    sample_tokens,
    sample_tokens_reference,
)
from headtohead.generation.strategies import build_strategy
from headtohead.generation.token_ranks import count_likelier_tokens, sum_likelier_probs

SEQUENCE_KEYS = np.array([derive_continuation_key(0, [5, 6, 7], sample) for sample in range(32)], dtype=np.uint64)


def build_empty_state(batch_size: int) -> GenerationState:
    """Return the state of a batch of empty sequences."""
    return GenerationState([[]] * batch_size, [0] * batch_size)


def draw_logits(batch_size: int, vocab_size: int, scale: float, seed: int = 0) -> Tensor:
    return scale * torch.randn(batch_size, vocab_size, generator=torch.Generator().manual_seed(seed))


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
def test_fast_sampling_returns_the_tokens_of_the_reference(name: str, options: dict[str, Any], scale: float) -> None:
    processors = build_strategy(name, **options).logits_processors
    for seed in range(6):
        logits = draw_logits(32, 1000, scale, seed)
        uniforms = hash_uniforms(SEQUENCE_KEYS, range(seed, seed + 1), 1000)[0]
        expected = sample_tokens_reference(logits, processors, build_empty_state(32), uniforms)
        assert sample_tokens(logits, processors, build_empty_state(32), uniforms) == expected


@given(
    st.lists(st.floats(-30, 30, width=32), min_size=2, max_size=40),
    st.integers(0, 2**63 - 1),
    st.one_of(st.floats(1e-4, 1.0).map(TopPLogitsProcessor), st.integers(1, 50).map(TopKLogitsProcessor)),
)
@settings(deadline=None)
def test_fast_sampling_equals_the_reference_for_any_logits(
    row: list[float], key: int, truncation: LogitsProcessor
) -> None:
    logits = torch.tensor([row])
    uniforms = hash_uniforms(np.array([key], dtype=np.uint64), range(1), len(row))[0]
    expected = sample_tokens_reference(logits, [truncation], build_empty_state(1), uniforms)
    sampled = sample_tokens(logits, [truncation], build_empty_state(1), uniforms)
    kept = compute_sampling_probs(logits, [truncation])[0]
    # Rounding may decide either way whether a token on the very edge of the nucleus is inside.
    assert (
        sampled == expected
        or kept[sampled[0]] in (0, kept[kept > 0].min())
        or kept[expected[0]] == kept[kept > 0].min()
    )


@pytest.mark.parametrize(
    "processors",
    [
        [TopPLogitsProcessor(0.7)],
        [TopPLogitsProcessor(0.9)],
        [TopKLogitsProcessor(5)],
        [],
        [TemperatureLogitsProcessor(0.5), TopPLogitsProcessor(0.8)],
    ],
    ids=repr,
)
def test_token_frequencies_follow_the_renormalized_distribution(processors: list[LogitsProcessor]) -> None:
    """Chi-square test over 20,000 draws from one distribution, with a fixed seed."""
    logits = draw_logits(1, 30, 0.9)
    num_draws, batch_size = 20_000, 500
    counts = np.zeros(30)
    for start in range(0, num_draws, batch_size):
        keys = np.array(
            [derive_continuation_key(1, [4], sample) for sample in range(start, start + batch_size)], dtype=np.uint64
        )
        uniforms = hash_uniforms(keys, range(3, 4), 30)[0]
        np.add.at(
            counts, sample_tokens(logits.expand(batch_size, -1), processors, build_empty_state(batch_size), uniforms), 1
        )
    expected = compute_sampling_probs(logits, processors)[0].double().numpy()
    assert (counts[expected == 0] == 0).all()
    kept = expected > 0
    assert kept.sum() > 3
    assert stats.chisquare(counts[kept], num_draws * expected[kept] / expected.sum()).pvalue > 0.001


def test_successive_steps_are_independent() -> None:
    """Tokens at successive processors are distributed like independent draws."""
    counts = np.zeros((6, 6))
    flat_logits = torch.zeros(200, 6)
    for start in range(0, 10_000, 200):
        keys = np.array(
            [derive_continuation_key(2, [4], sample) for sample in range(start, start + 200)], dtype=np.uint64
        )
        uniforms_by_step = hash_uniforms(keys, range(2), 6)
        first, second = (
            sample_tokens(flat_logits, [], build_empty_state(200), uniforms) for uniforms in uniforms_by_step
        )
        np.add.at(counts, (first, second), 1)
    assert stats.chisquare(counts.ravel()).pvalue > 0.001


def test_random_numbers_are_uniform_and_never_zero() -> None:
    numbers = hash_uniforms(SEQUENCE_KEYS, range(4), 5755).ravel() / 2**31
    assert numbers.min() > 0
    assert numbers.max() <= 1
    assert stats.kstest(numbers[:50_000], "uniform").pvalue > 0.001
    assert len(np.unique(np.sort(numbers)[:1000])) == 1000  # those that win races keep all their digits


def test_arrival_times_are_exponential_and_at_least_their_uniform_numbers() -> None:
    uniforms = hash_uniforms(SEQUENCE_KEYS, range(2), 5755).ravel()
    times = uniform_to_exponential(uniforms)
    assert (times >= uniforms * (1 - 1e-6)).all()
    extremes = np.array([0.5, 2.0**31], dtype=np.float32)
    assert np.isfinite(uniform_to_exponential(extremes)).all()
    assert uniform_to_exponential(extremes).tolist() == [
        scalar_uniform_to_exponential(float(item)) for item in extremes
    ]
    assert stats.kstest(times[:50_000] / 2**31, "expon").pvalue > 0.001


def test_random_numbers_depend_on_key_step_and_token_only() -> None:
    uniforms = hash_uniforms(SEQUENCE_KEYS, range(10), 300)
    assert np.array_equal(hash_uniforms(SEQUENCE_KEYS[3:5], range(4, 6), 300), uniforms[4:6, 3:5])
    assert np.array_equal(hash_uniforms(SEQUENCE_KEYS, range(10), 100), uniforms[..., :100])
    rng = CounterRNG([int(k) for k in SEQUENCE_KEYS], 300)
    for step in range(10):
        if step == 4:
            rng.select_sequences([3, 4])
        expected = uniforms[step] if step < 4 else uniforms[step, 3:5]
        assert np.array_equal(rng.get_uniforms(step), expected)


def test_continuation_keys_depend_on_seed_prompt_and_sample() -> None:
    keys = {
        derive_continuation_key(seed, prompt, n) for seed in (0, 1) for prompt in ([1, 2], [12], [2, 1]) for n in (0, 1)
    }
    assert len(keys) == 12


def test_last_digits_of_logits_do_not_change_the_winner() -> None:
    """Batching changes the seventh digit of logits, which must not change the sampled token."""
    logits = draw_logits(32, 5755, 2.0)
    num_changed = 0
    for step in range(20):
        uniforms = hash_uniforms(SEQUENCE_KEYS, range(step, step + 1), 5755)[0]
        noise = 1e-6 * draw_logits(32, 5755, 1.0, seed=step)
        tokens = sample_tokens(logits, [TopPLogitsProcessor(0.9)], build_empty_state(32), uniforms)
        noisy_tokens = sample_tokens(logits + noise, [TopPLogitsProcessor(0.9)], build_empty_state(32), uniforms)
        num_changed += sum(a != b for a, b in zip(tokens, noisy_tokens, strict=True))
    assert num_changed == 0


def test_strategies_with_the_same_seed_share_random_numbers() -> None:
    """Top-p draws the same token as plain sampling whenever that token is in the nucleus."""
    logits = draw_logits(32, 200, 2.0)
    uniforms = hash_uniforms(SEQUENCE_KEYS, range(1), 200)[0]
    plain_tokens = sample_tokens(logits, [], build_empty_state(32), uniforms)
    nucleus_tokens = sample_tokens(logits, [TopPLogitsProcessor(0.8)], build_empty_state(32), uniforms)
    kept = compute_sampling_probs(logits, [TopPLogitsProcessor(0.8)]) > 0
    in_nucleus = [bool(kept[i, token]) for i, token in enumerate(plain_tokens)]
    assert 0 < sum(in_nucleus) < 32
    assert all(a == b for a, b, is_in in zip(plain_tokens, nucleus_tokens, in_nucleus, strict=True) if is_in)


@pytest.mark.parametrize("sample_function", [sample_tokens, sample_tokens_reference])
@pytest.mark.parametrize("truncation", [[], [TopPLogitsProcessor(0.9)], [TopKLogitsProcessor(3)]])
@pytest.mark.parametrize("value", [float("nan"), -float("inf")])
def test_distributions_without_a_token_to_sample_are_rejected(
    sample_function: Any, truncation: list[LogitsProcessor], value: float
) -> None:
    with pytest.raises(ModelError, match="no token can be sampled"):
        sample_function(
            torch.full((2, 9), value),
            truncation,
            build_empty_state(2),
            hash_uniforms(SEQUENCE_KEYS[:2], range(1), 9)[0],
        )


def test_token_ranks_equal_those_of_sorting() -> None:
    for tensor in draw_logits(8, 300, 2.0).softmax(-1):
        probs, token_prob = tensor.numpy(), float(tensor[17])
        assert count_likelier_tokens(probs, token_prob) == int((tensor > token_prob).sum())
        expected_sum = float(tensor[tensor > token_prob].double().sum())
        assert sum_likelier_probs(probs, token_prob) == pytest.approx(expected_sum, abs=1e-6)
        bounds = 2 * probs * np.float32(0.9)
        expected_bounds = np.where(probs > token_prob, bounds, 0)
        assert np.array_equal(_remove_unlikelier_tokens(bounds, probs, token_prob), expected_bounds)


def test_adjacent_probabilities_are_distinguished_when_tokens_are_removed() -> None:
    for value in (1.0, 0.3, 1e-5, 1e-20, 1e-37, 1e-40):
        low = np.float32(value)
        probs = np.array([low, np.nextafter(low, np.float32(2))], dtype=np.float32)
        expected_bounds = np.array([0, 2 * probs[1]], dtype=np.float32)
        assert np.array_equal(_remove_unlikelier_tokens(2 * probs, probs, float(low)), expected_bounds)
