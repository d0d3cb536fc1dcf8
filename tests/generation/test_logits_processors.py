"""Logits processors equal those of transformers, behave correctly at their limits, and reject invalid options."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers.generation import logits_process as reference

from headtohead.errors import StrategyError
from headtohead.generation.logits_processors import (
    ForcedEOSTokenLogitsProcessor,
    FrequencyPenaltyLogitsProcessor,
    GenerationState,
    MinNewTokensLogitsProcessor,
    MinPLogitsProcessor,
    NoBadWordsLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsProcessor,
    TopKLogitsProcessor,
    TopPLogitsProcessor,
    TypicalLogitsProcessor,
)
from headtohead.generation.sampling import compute_sampling_probs
from headtohead.generation.strategies import build_strategy
from headtohead.generation.strategy_parsing import parse_strategy

VOCAB_SIZE = 211
BATCH_SIZE = 6
PROMPT_LENGTH = 7
LENGTH = 40


def draw_logits(seed: int = 0, scale: float = 3.0) -> Tensor:
    return scale * torch.randn(BATCH_SIZE, VOCAB_SIZE, generator=torch.Generator().manual_seed(seed))


def draw_input_ids(seed: int = 0, num_distinct: int = 12) -> Tensor:
    """Return sequences with few distinct tokens, so that tokens repeat, (batch, length)."""
    return torch.randint(num_distinct, (BATCH_SIZE, LENGTH), generator=torch.Generator().manual_seed(seed))


def build_state(ids: Tensor, stop_ids: tuple[int, ...] = (3, 9)) -> GenerationState:
    return GenerationState(ids.tolist(), [PROMPT_LENGTH] * len(ids), stop_ids)


PROCESSOR_PAIRS: dict[str, tuple[Any, Callable[[], Any]]] = {
    "temperature": (TemperatureLogitsProcessor(0.6), lambda: reference.TemperatureLogitsWarper(0.6)),
    "top-k": (TopKLogitsProcessor(7), lambda: reference.TopKLogitsWarper(7)),
    "top-k of more than there are": (
        TopKLogitsProcessor(10**6),
        lambda: reference.TopKLogitsWarper(10**6),
    ),
    "top-p": (TopPLogitsProcessor(0.7), lambda: reference.TopPLogitsWarper(0.7)),
    "top-p, little": (TopPLogitsProcessor(0.05), lambda: reference.TopPLogitsWarper(0.05)),
    "min-p": (MinPLogitsProcessor(0.08), lambda: reference.MinPLogitsWarper(0.08)),
    "typical": (TypicalLogitsProcessor(0.6), lambda: reference.TypicalLogitsWarper(0.6)),
    "repetition penalty": (
        RepetitionPenaltyLogitsProcessor(1.3),
        lambda: reference.RepetitionPenaltyLogitsProcessor(1.3),
    ),
    "no repeat of 1": (
        NoRepeatNGramLogitsProcessor(1),
        lambda: reference.NoRepeatNGramLogitsProcessor(1),
    ),
    "no repeat of 2": (
        NoRepeatNGramLogitsProcessor(2),
        lambda: reference.NoRepeatNGramLogitsProcessor(2),
    ),
    "no repeat of 3": (
        NoRepeatNGramLogitsProcessor(3),
        lambda: reference.NoRepeatNGramLogitsProcessor(3),
    ),
    "ban": (
        NoBadWordsLogitsProcessor(((5,), (2, 8), (1, 4, 6), (11,))),
        lambda: reference.NoBadWordsLogitsProcessor([[5], [2, 8], [1, 4, 6], [11]]),
    ),
    "no stop yet": (
        MinNewTokensLogitsProcessor(LENGTH - PROMPT_LENGTH + 1),
        lambda: reference.MinNewTokensLengthLogitsProcessor(PROMPT_LENGTH, LENGTH - PROMPT_LENGTH + 1, [3, 9]),
    ),
    "no stop any more": (
        MinNewTokensLogitsProcessor(LENGTH - PROMPT_LENGTH),
        lambda: reference.MinNewTokensLengthLogitsProcessor(PROMPT_LENGTH, LENGTH - PROMPT_LENGTH, [3, 9]),
    ),
    "forced stop": (
        ForcedEOSTokenLogitsProcessor(LENGTH - PROMPT_LENGTH + 1),
        lambda: reference.ForcedEOSTokenLogitsProcessor(LENGTH + 1, [3, 9]),
    ),
    "no forced stop yet": (
        ForcedEOSTokenLogitsProcessor(LENGTH - PROMPT_LENGTH + 2),
        lambda: reference.ForcedEOSTokenLogitsProcessor(LENGTH + 2, [3, 9]),
    ),
}


@pytest.mark.parametrize("name", PROCESSOR_PAIRS)
@pytest.mark.parametrize("seed", range(4))
def test_processors_give_the_distributions_of_transformers(name: str, seed: int) -> None:
    processor, build_expected = PROCESSOR_PAIRS[name]
    logits, ids = draw_logits(seed), draw_input_ids(seed)
    expected = build_expected()(ids, logits.clone()).softmax(-1)
    probs = compute_sampling_probs(logits, [processor], build_state(ids))
    assert torch.equal(probs > 0, expected > 0)
    assert (probs - expected).abs().max() < 1e-6
    assert torch.allclose(probs.sum(-1), torch.ones(BATCH_SIZE))


def test_composed_processors_equal_those_of_transformers() -> None:
    logits, ids = draw_logits(9), draw_input_ids(9)
    expected = logits
    for processor in (
        reference.RepetitionPenaltyLogitsProcessor(1.2),
        reference.NoRepeatNGramLogitsProcessor(2),
        reference.TemperatureLogitsWarper(0.8),
        reference.TopPLogitsWarper(0.9),
    ):
        expected = processor(ids, expected)
    strategy = build_strategy("top-p", p=0.9, temperature=0.8, repetition_penalty=1.2, no_repeat_ngram=2)
    assert (
        compute_sampling_probs(logits, strategy.logits_processors, build_state(ids)) - expected.softmax(-1)
    ).abs().max() < 1e-6


def test_processors_do_not_modify_their_input() -> None:
    before = draw_logits()
    for processor, _ in PROCESSOR_PAIRS.values():
        logits = before.clone()
        processor(logits, build_state(draw_input_ids()))
        assert torch.equal(logits, before)


def test_frequency_penalty_counts_the_continuation_and_not_the_prompt() -> None:
    ids = torch.full((1, LENGTH), 4)
    ids[0, PROMPT_LENGTH:] = torch.tensor([1, 1, 1, 2] + [7] * (LENGTH - PROMPT_LENGTH - 4))
    zero_logits = torch.zeros(1, VOCAB_SIZE)
    result = FrequencyPenaltyLogitsProcessor(0.5, 0.25)(zero_logits, build_state(ids))[0]
    assert result[1] == -(3 * 0.5 + 0.25)
    assert result[2] == -(0.5 + 0.25)
    assert result[4] == 0


def test_equally_likely_tokens_are_kept_or_removed_together() -> None:
    tied_logits = torch.tensor([[2.0, 1.0, 1.0, 1.0, 0.0]])
    state = GenerationState([[]], [0])
    assert (compute_sampling_probs(tied_logits, [TopKLogitsProcessor(2)], state) > 0).tolist() == [
        [True, True, True, True, False]
    ]
    # 2, 1, 1, 1, 0 hold 0.45, 0.17 three times, 0.06: the second of the three would be enough.
    assert (compute_sampling_probs(tied_logits, [TopPLogitsProcessor(0.7)], state) > 0).tolist() == [
        [True, True, True, True, False]
    ]


# ---- limits

logits_batches = st.lists(
    st.lists(st.integers(-4000, 4000), min_size=5, max_size=5, unique=True), min_size=1, max_size=3
).map(lambda rows: torch.tensor(rows) / 100)  # apart by at least 0.01, so that a single token is the most likely


def compute_strategy_probs(name: str, logits: Tensor, **options: Any) -> Tensor:
    return compute_sampling_probs(logits, build_strategy(name, **options).logits_processors)


@given(logits_batches)
@settings(deadline=None)
def test_strategies_are_greedy_in_the_limit_of_full_truncation(logits: Tensor) -> None:
    greedy = torch.nn.functional.one_hot(logits.argmax(-1), logits.shape[-1]).float()
    for result in (
        compute_strategy_probs("temperature", logits, temperature=1e-5),
        compute_sampling_probs(logits, [TemperatureLogitsProcessor(0.0)]),
        compute_strategy_probs("top-k", logits, k=1),
        compute_strategy_probs("top-p", logits, p=1e-9),
        compute_strategy_probs("min-p", logits, p=1.0),
    ):
        assert torch.allclose(result, greedy, atol=1e-6)
    assert build_strategy("top-p", p=0.5, temperature=0).mode == "greedy"


@given(logits_batches)
@settings(deadline=None)
def test_strategies_are_plain_sampling_in_the_limit_of_no_truncation(logits: Tensor) -> None:
    plain = logits.softmax(-1)
    for name, options in (
        ("sample", {}),
        ("temperature", {"temperature": 1.0}),
        ("top-k", {"k": logits.shape[-1]}),
        ("top-p", {"p": 1.0}),
        ("min-p", {"p": 1e-38}),
        ("typical", {"p": 1.0}),
    ):
        assert torch.allclose(compute_strategy_probs(name, logits, **options), plain, atol=1e-7), name


@given(logits_batches, st.floats(0.01, 1.0), st.floats(0.01, 1.0))
@settings(deadline=None)
def test_a_larger_p_keeps_all_tokens_of_a_smaller_p(logits: Tensor, one: float, other: float) -> None:
    small, large = sorted((one, other))
    for name in ("top-p", "typical"):
        inner, outer = (compute_strategy_probs(name, logits, p=p) > 0 for p in (small, large))
        assert (inner <= outer).all()


@given(logits_batches, st.floats(0.01, 0.99))
@settings(deadline=None)
def test_the_nucleus_is_the_smallest_set_of_tokens_with_probability_p(logits: Tensor, p: float) -> None:
    plain = logits.double().softmax(-1)
    for row, remaining in zip(plain, compute_strategy_probs("top-p", logits, p=p) > 0, strict=True):
        assert row[remaining].sum() >= p - 1e-6
        assert row[remaining].sum() - row[remaining].min() <= p + 1e-6
        assert row[remaining].min() > row[~remaining].max() if (~remaining).any() else True


# ---- names and options


def test_strategies_are_values_that_can_be_written_as_text_and_parsed() -> None:
    strategy = build_strategy("top-p", temperature=0.9, p=0.7)
    assert str(strategy) == "top-p(p=0.7, temperature=0.9)"
    assert parse_strategy(str(strategy)) == strategy == parse_strategy("top-p:p=0.7,temperature=0.9")
    assert hash(parse_strategy(str(strategy))) == hash(strategy)
    assert strategy.with_options(p=0.5) == build_strategy("top-p", p=0.5, temperature=0.9)
    assert strategy.to_dict() == {"strategy": "top-p", "p": 0.7, "temperature": 0.9}
    assert parse_strategy("greedy") == build_strategy("greedy")
    banned = build_strategy("greedy", ban=[3, "the end"])
    assert parse_strategy(str(banned)) == banned


def test_names_of_other_libraries_are_accepted() -> None:
    assert build_strategy("nucleus", top_p=0.7) == build_strategy("top-p", p=0.7)
    assert build_strategy("top_k", top_k=5) == build_strategy("top-k", k=5)
    assert build_strategy("beam-search", num_beams=3) == build_strategy("beam", beams=3)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("top-p", {"p": 0}, r"top-p: p must be a probability in \(0, 1\], got 0"),
        ("top-p", {"p": 1.01}, r"in \(0, 1\], got 1.01"),
        ("top-p", {"p": float("nan")}, r"in \(0, 1\], got nan"),
        ("top-p", {"p": "0.5"}, r"in \(0, 1\], got '0.5'"),
        ("min-p", {"p": -0.1}, r"in \(0, 1\], got -0.1"),
        ("typical", {"p": 2}, r"in \(0, 1\], got 2"),
        ("top-k", {"k": 0}, r"k must be an integer of at least 1, got 0"),
        ("top-k", {"k": 2.5}, r"at least 1, got 2.5"),
        ("top-k", {"k": True}, r"at least 1, got True"),
        ("sample", {"temperature": -0.1}, r"temperature must be at least 0 \(0 is greedy\), got -0.1"),
        ("sample", {"temperature": float("inf")}, r"temperature must be at least 0"),
        ("sample", {"repetition_penalty": 0}, r"repetition_penalty must be above 0 \(1 has no effect\), got 0"),
        ("greedy", {"no_repeat_ngram": 0}, r"no_repeat_ngram must be an integer of at least 1, got 0"),
        ("greedy", {"ban": [-1]}, r"ban must be a list of token ids, sequences of them, or texts"),
        ("greedy", {"min_new_tokens": -1}, r"min_new_tokens must be an integer of at least 0, got -1"),
        ("greedy", {"force_stop": 0}, r"force_stop must be an integer of at least 1, got 0"),
        ("greedy", {"temperature": 0.5}, r"greedy: no option 'temperature'"),
        ("beam", {"beams": 0}, r"beam: beams must be an integer of at least 1, got 0"),
        ("beam", {"early_stopping": "yes"}, r"early_stopping must be True, False or 'never', got 'yes'"),
        ("contrastive", {"alpha": 1.5}, r"alpha must be in \[0, 1\], got 1.5"),
        ("contrastive", {"k": 0}, r"k must be an integer of at least 1, got 0"),
        ("top-p", {"temprature": 0.5}, r"no option 'temprature'; did you mean 'temperature'\?"),
        ("top-p", {"p": 0.5, "top_p": 0.5}, r"option 'p' is given twice"),
        ("top-q", {}, r"no strategy named 'top-q'; did you mean 'top-p'\? \(available: greedy, sample"),
        ("nuclear", {}, r"no strategy named 'nuclear'; did you mean 'top-p'\?"),
    ],
)
@pytest.mark.usefixtures("unchecked")  # also values of the wrong type, which a user may well give
def test_invalid_options_are_rejected_with_a_message(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(StrategyError, match=message):
        build_strategy(name, **options)


def test_all_errors_are_reported_together() -> None:
    with pytest.raises(StrategyError, match=r"temperature must be at least 0.*p must be a probability.*"):
        build_strategy("top-p", p=3, temperature=-1)


@pytest.mark.parametrize("text", ["top-p(", "top-p(0.7)", "top-p(p=x)", "top p", "top-p(p=0.7))", ""])
def test_texts_that_are_no_strategy_are_rejected(text: str) -> None:
    with pytest.raises(StrategyError, match=r"expected name|invalid options|no strategy"):
        parse_strategy(text)


def test_forced_stop_requires_a_stop_token() -> None:
    with pytest.raises(StrategyError, match="the model has no stop token"):
        ForcedEOSTokenLogitsProcessor(1)(draw_logits(), GenerationState([[1]] * BATCH_SIZE, [1] * BATCH_SIZE, ()))


def test_banned_texts_require_a_tokenizer() -> None:
    with pytest.raises(StrategyError, match="the text 'the end' requires a tokenizer"):
        compute_sampling_probs(draw_logits(), build_strategy("sample", ban=["the end"]).logits_processors)
