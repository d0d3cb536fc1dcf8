"""Searches: beam search token for token as transformers has it, contrastive search as its paper defines it."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import headtohead as h2h
from headtohead.generation import beam_search, strategies
from headtohead.nn.transformer import Transformer
from headtohead.pretrained.loading import PretrainedModel

from .test_generate import ids_of, prompts, reference

SETTINGS: list[tuple[int, float, Any]] = [
    (2, 1.0, False),
    (4, 1.0, False),
    (4, 0.0, False),
    (4, 2.0, False),
    (4, -1.0, False),
    (5, 1.0, True),
    (3, 0.0, "never"),
    (3, 1.5, "never"),
]


@pytest.mark.parametrize(("beams", "penalty", "early"), SETTINGS)
@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_beam_search_is_token_for_token_what_transformers_gives(
    kind: str, beams: int, penalty: float, early: Any, theirs: Callable[[str], PretrainedModel]
) -> None:
    model = theirs(kind)
    chosen = strategies.build_strategy("beam", beams=beams, length_penalty=penalty, early_stopping=early)
    ended = 0
    for prompt in prompts(3, seed=2):
        made = h2h.generate(model, [prompt], chosen, num_samples=beams, max_new_tokens=20, stop=STOP[kind])
        expected = reference(
            model,
            prompt,
            stop=STOP[kind],
            num_beams=beams,
            length_penalty=penalty,
            early_stopping=early,
            num_return_sequences=beams,
        )
        assert [list(one.ids) for one in made] == expected
        ended += sum(one.finish_reason == "token" for one in made)
    assert ended > 0 or penalty > 0  # stop tokens were met, so that the rules about them were tried


STOP = {"gpt2": [14, 84], "llama": [7, 76]}


def test_one_beam_is_greedy(ours: Callable[..., Transformer]) -> None:
    model, texts = ours(), prompts(5)
    greedy = h2h.generate(model, texts, "greedy", max_new_tokens=15)
    assert ids_of(h2h.generate(model, texts, strategies.build_strategy("beam", beams=1), max_new_tokens=15)) == ids_of(
        greedy
    )


def test_enough_beams_find_the_likeliest_text_of_all(ours: Callable[..., Transformer]) -> None:
    """All continuations of two tokens are few enough to be tried."""
    model = ours()
    with torch.no_grad():
        first = model(torch.tensor([[5, 6]])).logits[0, -1].log_softmax(-1)
        second = torch.stack(
            [model(torch.tensor([[5, 6, i]])).logits[0, -1].log_softmax(-1) for i in range(len(first))]
        )
    total = first[:, None] + second
    best = divmod(int(total.argmax()), len(first))
    (made, *_) = h2h.generate(model, [[5, 6]], strategies.build_strategy("beam", beams=len(first)), max_new_tokens=2)
    assert made.ids == best


def test_scores_of_beams_are_their_likelihood_and_fall(ours: Callable[..., Transformer]) -> None:
    model = ours()
    chosen = strategies.build_strategy("beam", beams=4, length_penalty=0.0)
    found = beam_search.beam_search(model, [5, 6], chosen, (), 6)
    for one in found:
        with torch.no_grad():
            logits = model(torch.tensor([[5, 6, *one.ids]])).logits[0, 1:-1].log_softmax(-1)
        likelihood = sum(float(row[token]) for row, token in zip(logits, one.ids, strict=True))
        assert one.score == pytest.approx(likelihood, abs=1e-3)
    assert [one.score for one in found] == sorted((one.score for one in found), reverse=True)


# ---- contrastive search


def by_definition(model: Transformer, prompt: list[int], k: int, alpha: float, count: int) -> list[int]:
    """Su et al. 2022, equation 5, without a cache and one candidate at a time."""
    row = list(prompt)
    for _ in range(count):
        with torch.no_grad():
            shares = model(torch.tensor([row])).logits[0, -1].softmax(-1)
            found: dict[int, float] = {}
            for token in shares.topk(k).indices.tolist():
                hidden = model(torch.tensor([[*row, token]])).last_hidden_state
                assert hidden is not None
                likeness = max(float(cosine(hidden[0, -1], one)) for one in hidden[0, :-1])
                found[token] = (1 - alpha) * float(shares[token]) - alpha * likeness
        row.append(max(found, key=lambda token: found[token]))
    return row[len(prompt) :]


def cosine(one: Tensor, other: Tensor) -> Tensor:
    return one @ other / one.norm() / other.norm()


@pytest.mark.parametrize(("k", "alpha"), [(4, 0.6), (8, 0.3), (3, 1.0)])
def test_contrastive_search_is_what_its_paper_defines(k: int, alpha: float, ours: Callable[..., Transformer]) -> None:
    model = ours(position="rope")
    (made,) = h2h.generate(
        model, [[5, 6, 7]], strategies.build_strategy("contrastive", k=k, alpha=alpha), max_new_tokens=12
    )
    assert list(made.ids) == by_definition(model, [5, 6, 7], k, alpha, 12)


@pytest.mark.parametrize("options", [{"k": 1}, {"alpha": 0}])
def test_without_candidates_or_without_contrast_it_is_greedy(
    options: dict[str, Any], ours: Callable[..., Transformer], theirs: Callable[[str], PretrainedModel]
) -> None:
    for model in (ours(), theirs("gpt2"), theirs("llama")):
        chosen = strategies.build_strategy("contrastive", **options)
        made = h2h.generate(model, prompts(2), chosen, max_new_tokens=10)
        assert ids_of(made) == ids_of(h2h.generate(model, prompts(2), "greedy", max_new_tokens=10))


def test_contrastive_search_of_pretrained_models_does_not_depend_on_the_cache(
    theirs: Callable[[str], PretrainedModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = theirs("llama")
    expected = ids_of(h2h.generate(model, prompts(2), "contrastive", max_new_tokens=10))
    monkeypatch.setattr(PretrainedModel, "create_cache", lambda self: None)
    assert ids_of(h2h.generate(model, prompts(2), "contrastive", max_new_tokens=10)) == expected


def test_a_search_ends_at_strings_and_tokens_too(ours: Callable[..., Transformer]) -> None:
    model = ours()
    for name in ("beam", "contrastive"):
        (whole,) = h2h.generate(model, [[5, 6]], name, max_new_tokens=12)
        (cut,) = h2h.generate(model, [[5, 6]], name, max_new_tokens=5)
        assert len(cut.ids) == 5
        assert cut.finish_reason == "length"
        assert len(whole.ids) == 12
