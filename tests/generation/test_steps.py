"""Steps from logits to a distribution: equal to transformers' own, lawful at their limits, clear in refusal."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers.generation import logits_process as theirs

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
    logits_to_probs,
)
from headtohead.generation.strategies import build_strategy, parse_strategy

VOCAB, ROWS = 211, 6
PROMPT, LENGTH = 7, 40


def logits(seed: int = 0, scale: float = 3.0) -> Tensor:
    return scale * torch.randn(ROWS, VOCAB, generator=torch.Generator().manual_seed(seed))


def text(seed: int = 0, kinds: int = 12) -> Tensor:
    """Few kinds of tokens, so that there is something to repeat."""
    return torch.randint(kinds, (ROWS, LENGTH), generator=torch.Generator().manual_seed(seed))


def seen(ids: Tensor, stop_ids: tuple[int, ...] = (3, 9)) -> GenerationState:
    return GenerationState(ids.tolist(), [PROMPT] * len(ids), stop_ids)


PAIRS: dict[str, tuple[Any, Callable[[], Any]]] = {
    "temperature": (TemperatureLogitsProcessor(0.6), lambda: theirs.TemperatureLogitsWarper(0.6)),
    "top-k": (TopKLogitsProcessor(7), lambda: theirs.TopKLogitsWarper(7)),
    "top-k of more than there are": (TopKLogitsProcessor(10**6), lambda: theirs.TopKLogitsWarper(10**6)),
    "top-p": (TopPLogitsProcessor(0.7), lambda: theirs.TopPLogitsWarper(0.7)),
    "top-p, little": (TopPLogitsProcessor(0.05), lambda: theirs.TopPLogitsWarper(0.05)),
    "min-p": (MinPLogitsProcessor(0.08), lambda: theirs.MinPLogitsWarper(0.08)),
    "typical": (TypicalLogitsProcessor(0.6), lambda: theirs.TypicalLogitsWarper(0.6)),
    "repetition penalty": (RepetitionPenaltyLogitsProcessor(1.3), lambda: theirs.RepetitionPenaltyLogitsProcessor(1.3)),
    "no repeat of 1": (NoRepeatNGramLogitsProcessor(1), lambda: theirs.NoRepeatNGramLogitsProcessor(1)),
    "no repeat of 2": (NoRepeatNGramLogitsProcessor(2), lambda: theirs.NoRepeatNGramLogitsProcessor(2)),
    "no repeat of 3": (NoRepeatNGramLogitsProcessor(3), lambda: theirs.NoRepeatNGramLogitsProcessor(3)),
    "ban": (
        NoBadWordsLogitsProcessor(((5,), (2, 8), (1, 4, 6), (11,))),
        lambda: theirs.NoBadWordsLogitsProcessor([[5], [2, 8], [1, 4, 6], [11]]),
    ),
    "no stop yet": (
        MinNewTokensLogitsProcessor(LENGTH - PROMPT + 1),
        lambda: theirs.MinNewTokensLengthLogitsProcessor(PROMPT, LENGTH - PROMPT + 1, [3, 9]),
    ),
    "no stop any more": (
        MinNewTokensLogitsProcessor(LENGTH - PROMPT),
        lambda: theirs.MinNewTokensLengthLogitsProcessor(PROMPT, LENGTH - PROMPT, [3, 9]),
    ),
    "forced stop": (
        ForcedEOSTokenLogitsProcessor(LENGTH - PROMPT + 1),
        lambda: theirs.ForcedEOSTokenLogitsProcessor(LENGTH + 1, [3, 9]),
    ),
    "no forced stop yet": (
        ForcedEOSTokenLogitsProcessor(LENGTH - PROMPT + 2),
        lambda: theirs.ForcedEOSTokenLogitsProcessor(LENGTH + 2, [3, 9]),
    ),
}


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("seed", range(4))
def test_each_step_leaves_the_distribution_that_transformers_leaves(name: str, seed: int) -> None:
    ours, make = PAIRS[name]
    given_logits, ids = logits(seed), text(seed)
    expected = make()(ids, given_logits.clone()).softmax(-1)
    found = logits_to_probs(given_logits, [ours], seen(ids))
    assert torch.equal(found > 0, expected > 0)
    assert (found - expected).abs().max() < 1e-6
    assert torch.allclose(found.sum(-1), torch.ones(ROWS))


def test_steps_composed_are_transformers_processors_composed() -> None:
    given_logits, ids = logits(9), text(9)
    expected = given_logits
    for one in (
        theirs.RepetitionPenaltyLogitsProcessor(1.2),
        theirs.NoRepeatNGramLogitsProcessor(2),
        theirs.TemperatureLogitsWarper(0.8),
        theirs.TopPLogitsWarper(0.9),
    ):
        expected = one(ids, expected)
    ours = build_strategy("top-p", p=0.9, temperature=0.8, repetition_penalty=1.2, no_repeat_ngram=2)
    assert (logits_to_probs(given_logits, ours.logits_processors, seen(ids)) - expected.softmax(-1)).abs().max() < 1e-6


def test_a_step_does_not_touch_the_logits_it_is_given() -> None:
    before = logits()
    for ours, _ in PAIRS.values():
        given_logits = before.clone()
        ours(given_logits, seen(text()))
        assert torch.equal(given_logits, before)


def test_frequency_penalty_counts_the_continuation_and_not_the_prompt() -> None:
    ids = torch.full((1, LENGTH), 4)
    ids[0, PROMPT:] = torch.tensor([1, 1, 1, 2] + [7] * (LENGTH - PROMPT - 4))
    flat = torch.zeros(1, VOCAB)
    found = FrequencyPenaltyLogitsProcessor(0.5, 0.25)(flat, seen(ids))[0]
    assert found[1] == -(3 * 0.5 + 0.25)
    assert found[2] == -(0.5 + 0.25)
    assert found[4] == 0


def test_equal_tokens_stay_or_go_together() -> None:
    tied = torch.tensor([[2.0, 1.0, 1.0, 1.0, 0.0]])
    nobody = GenerationState([[]], [0])
    assert (logits_to_probs(tied, [TopKLogitsProcessor(2)], nobody) > 0).tolist() == [[True, True, True, True, False]]
    # 2, 1, 1, 1, 0 hold 0.45, 0.17 three times, 0.06: the second of the three would be enough.
    assert (logits_to_probs(tied, [TopPLogitsProcessor(0.7)], nobody) > 0).tolist() == [[True, True, True, True, False]]


# ---- limits as laws

rows_of_logits = st.lists(
    st.lists(st.integers(-4000, 4000), min_size=5, max_size=5, unique=True), min_size=1, max_size=3
).map(lambda rows: torch.tensor(rows) / 100)  # apart by 0.01 at least: the likeliest token is one


def drawn_from(name: str, given_logits: Tensor, **options: Any) -> Tensor:
    return logits_to_probs(given_logits, build_strategy(name, **options).logits_processors)


@given(rows_of_logits)
@settings(deadline=None)
def test_towards_nothing_every_strategy_is_greedy(given_logits: Tensor) -> None:
    greedy = torch.nn.functional.one_hot(given_logits.argmax(-1), given_logits.shape[-1]).float()
    for found in (
        drawn_from("temperature", given_logits, temperature=1e-5),
        logits_to_probs(given_logits, [TemperatureLogitsProcessor(0.0)]),
        drawn_from("top-k", given_logits, k=1),
        drawn_from("top-p", given_logits, p=1e-9),
        drawn_from("min-p", given_logits, p=1.0),
    ):
        assert torch.allclose(found, greedy, atol=1e-6)
    assert build_strategy("top-p", p=0.5, temperature=0).mode == "greedy"


@given(rows_of_logits)
@settings(deadline=None)
def test_towards_everything_every_strategy_is_plain_sampling(given_logits: Tensor) -> None:
    plain = given_logits.softmax(-1)
    for name, options in (
        ("sample", {}),
        ("temperature", {"temperature": 1.0}),
        ("top-k", {"k": given_logits.shape[-1]}),
        ("top-p", {"p": 1.0}),
        ("min-p", {"p": 1e-38}),
        ("typical", {"p": 1.0}),
    ):
        assert torch.allclose(drawn_from(name, given_logits, **options), plain, atol=1e-7), name


@given(rows_of_logits, st.floats(0.01, 1.0), st.floats(0.01, 1.0))
@settings(deadline=None)
def test_a_larger_share_keeps_what_a_smaller_one_keeps(given_logits: Tensor, one: float, other: float) -> None:
    small, large = sorted((one, other))
    for name in ("top-p", "typical"):
        inner, outer = (drawn_from(name, given_logits, p=p) > 0 for p in (small, large))
        assert (inner <= outer).all()


@given(rows_of_logits, st.floats(0.01, 0.99))
@settings(deadline=None)
def test_the_nucleus_is_the_fewest_tokens_that_hold_the_share(given_logits: Tensor, p: float) -> None:
    plain = given_logits.double().softmax(-1)
    for row, kept in zip(plain, drawn_from("top-p", given_logits, p=p) > 0, strict=True):
        assert row[kept].sum() >= p - 1e-6
        assert row[kept].sum() - row[kept].min() <= p + 1e-6
        assert row[kept].min() > row[~kept].max() if (~kept).any() else True


# ---- names and options


def test_a_strategy_is_data_that_can_be_written_down_and_read_back() -> None:
    one = build_strategy("top-p", temperature=0.9, p=0.7)
    assert str(one) == "top-p(p=0.7, temperature=0.9)"
    assert parse_strategy(str(one)) == one == parse_strategy("top-p:p=0.7,temperature=0.9")
    assert hash(parse_strategy(str(one))) == hash(one)
    assert one.with_options(p=0.5) == build_strategy("top-p", p=0.5, temperature=0.9)
    assert one.to_dict() == {"strategy": "top-p", "p": 0.7, "temperature": 0.9}
    assert parse_strategy("greedy") == build_strategy("greedy")
    banned = build_strategy("greedy", ban=[3, "the end"])
    assert parse_strategy(str(banned)) == banned


def test_names_of_other_libraries_are_understood() -> None:
    assert build_strategy("nucleus", top_p=0.7) == build_strategy("top-p", p=0.7)
    assert build_strategy("top_k", top_k=5) == build_strategy("top-k", k=5)
    assert build_strategy("beam-search", num_beams=3) == build_strategy("beam", beams=3)


@pytest.mark.parametrize(
    ("name", "options", "said"),
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
def test_impossible_options_are_refused_in_words(name: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(StrategyError, match=said):
        build_strategy(name, **options)


def test_everything_that_is_wrong_is_said_at_once() -> None:
    with pytest.raises(StrategyError, match=r"temperature must be at least 0.*p must be a probability.*"):
        build_strategy("top-p", p=3, temperature=-1)


@pytest.mark.parametrize("text", ["top-p(", "top-p(0.7)", "top-p(p=x)", "top p", "top-p(p=0.7))", ""])
def test_what_cannot_be_read_as_a_strategy_is_refused(text: str) -> None:
    with pytest.raises(StrategyError, match=r"expected name|invalid options|no strategy"):
        parse_strategy(text)


def test_a_forced_stop_needs_a_stop_token() -> None:
    with pytest.raises(StrategyError, match="the model has no stop token"):
        ForcedEOSTokenLogitsProcessor(1)(logits(), GenerationState([[1]] * ROWS, [1] * ROWS, ()))


def test_a_banned_text_needs_a_tokenizer() -> None:
    with pytest.raises(StrategyError, match="the text 'the end' requires a tokenizer"):
        logits_to_probs(logits(), build_strategy("sample", ban=["the end"]).logits_processors)
