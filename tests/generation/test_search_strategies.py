"""Beam search equals transformers token by token; contrastive search equals the definition in its paper."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import headtohead as h2h
from headtohead.generation import beam_search, strategies
from headtohead.nn.transformer import Transformer
from headtohead.pretrained.pretrained_model import PretrainedModel

from .test_generate import draw_prompts, generate_with_transformers, get_token_ids

BEAM_SETTINGS: list[tuple[int, float, Any]] = [
    (2, 1.0, False),
    (4, 1.0, False),
    (4, 0.0, False),
    (4, 2.0, False),
    (4, -1.0, False),
    (5, 1.0, True),
    (3, 0.0, "never"),
    (3, 1.5, "never"),
]


@pytest.mark.parametrize(("beams", "penalty", "early_stopping"), BEAM_SETTINGS)
@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_beam_search_returns_the_tokens_of_transformers(
    kind: str, beams: int, penalty: float, early_stopping: Any, theirs: Callable[[str], PretrainedModel]
) -> None:
    model = theirs(kind)
    strategy = strategies.build_strategy("beam", beams=beams, length_penalty=penalty, early_stopping=early_stopping)
    num_stopped = 0
    for prompt in draw_prompts(3, seed=2):
        continuations = h2h.generate(model, [prompt], strategy, num_samples=beams, max_new_tokens=20, stop=STOP[kind])
        expected = generate_with_transformers(
            model,
            prompt,
            stop=STOP[kind],
            num_beams=beams,
            length_penalty=penalty,
            early_stopping=early_stopping,
            num_return_sequences=beams,
        )
        assert [list(continuation.ids) for continuation in continuations] == expected
        num_stopped += sum(continuation.finish_reason == "token" for continuation in continuations)
    assert num_stopped > 0 or penalty > 0  # stop tokens occurred, so the rules for them were tested


STOP = {"gpt2": [14, 84], "llama": [7, 76]}


def test_one_beam_is_greedy(ours: Callable[..., Transformer]) -> None:
    model, prompt_ids = ours(), draw_prompts(5)
    greedy = h2h.generate(model, prompt_ids, "greedy", max_new_tokens=15)
    assert get_token_ids(
        h2h.generate(model, prompt_ids, strategies.build_strategy("beam", beams=1), max_new_tokens=15)
    ) == get_token_ids(greedy)


def test_enough_beams_find_the_most_likely_continuation(ours: Callable[..., Transformer]) -> None:
    """All continuations of two tokens can be enumerated."""
    model = ours()
    with torch.no_grad():
        first = model(torch.tensor([[5, 6]])).logits[0, -1].log_softmax(-1)
        second = torch.stack(
            [model(torch.tensor([[5, 6, i]])).logits[0, -1].log_softmax(-1) for i in range(len(first))]
        )
    total = first[:, None] + second
    best = divmod(int(total.argmax()), len(first))
    (result, *_) = h2h.generate(model, [[5, 6]], strategies.build_strategy("beam", beams=len(first)), max_new_tokens=2)
    assert result.ids == best


def test_beam_scores_are_log_likelihoods_in_decreasing_order(ours: Callable[..., Transformer]) -> None:
    model = ours()
    strategy = strategies.build_strategy("beam", beams=4, length_penalty=0.0)
    hypotheses = beam_search.beam_search(model, [5, 6], strategy, (), 6)
    for hypothesis in hypotheses:
        with torch.no_grad():
            logits = model(torch.tensor([[5, 6, *hypothesis.token_ids]])).logits[0, 1:-1].log_softmax(-1)
        log_likelihood = sum(float(row[token]) for row, token in zip(logits, hypothesis.token_ids, strict=True))
        assert hypothesis.score == pytest.approx(log_likelihood, abs=1e-3)
    scores = [hypothesis.score for hypothesis in hypotheses]
    assert scores == sorted(scores, reverse=True)


# ---- contrastive search


def search_by_definition(model: Transformer, prompt: list[int], k: int, alpha: float, count: int) -> list[int]:
    """Su et al. 2022, equation 5, without a cache and one candidate at a time."""
    token_ids = list(prompt)
    for _ in range(count):
        with torch.no_grad():
            probs = model(torch.tensor([token_ids])).logits[0, -1].softmax(-1)
            scores: dict[int, float] = {}
            for token in probs.topk(k).indices.tolist():
                hidden = model(torch.tensor([[*token_ids, token]])).last_hidden_state
                assert hidden is not None
                similarity = max(float(cosine_similarity(hidden[0, -1], state)) for state in hidden[0, :-1])
                scores[token] = (1 - alpha) * float(probs[token]) - alpha * similarity
        token_ids.append(max(scores, key=lambda token: scores[token]))
    return token_ids[len(prompt) :]


def cosine_similarity(a: Tensor, b: Tensor) -> Tensor:
    return a @ b / a.norm() / b.norm()


@pytest.mark.parametrize(("k", "alpha"), [(4, 0.6), (8, 0.3), (3, 1.0)])
def test_contrastive_search_follows_its_definition(k: int, alpha: float, ours: Callable[..., Transformer]) -> None:
    model = ours(position="rope")
    (result,) = h2h.generate(
        model, [[5, 6, 7]], strategies.build_strategy("contrastive", k=k, alpha=alpha), max_new_tokens=12
    )
    assert list(result.ids) == search_by_definition(model, [5, 6, 7], k, alpha, 12)


@pytest.mark.parametrize("options", [{"k": 1}, {"alpha": 0}])
def test_contrastive_search_with_one_candidate_or_without_penalty_is_greedy(
    options: dict[str, Any], ours: Callable[..., Transformer], theirs: Callable[[str], PretrainedModel]
) -> None:
    for model in (ours(), theirs("gpt2"), theirs("llama")):
        strategy = strategies.build_strategy("contrastive", **options)
        continuations = h2h.generate(model, draw_prompts(2), strategy, max_new_tokens=10)
        assert get_token_ids(continuations) == get_token_ids(
            h2h.generate(model, draw_prompts(2), "greedy", max_new_tokens=10)
        )


def test_contrastive_search_of_pretrained_models_does_not_depend_on_the_cache(
    theirs: Callable[[str], PretrainedModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = theirs("llama")
    expected = get_token_ids(h2h.generate(model, draw_prompts(2), "contrastive", max_new_tokens=10))
    monkeypatch.setattr(PretrainedModel, "create_cache", lambda self: None)
    assert get_token_ids(h2h.generate(model, draw_prompts(2), "contrastive", max_new_tokens=10)) == expected


def test_searches_end_at_the_maximum_length(ours: Callable[..., Transformer]) -> None:
    model = ours()
    for name in ("beam", "contrastive"):
        (complete,) = h2h.generate(model, [[5, 6]], name, max_new_tokens=12)
        (short,) = h2h.generate(model, [[5, 6]], name, max_new_tokens=5)
        assert len(short.ids) == 5
        assert short.finish_reason == "length"
        assert len(complete.ids) == 12
