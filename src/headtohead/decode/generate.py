"""Generation as a ladder of small functions: prefill, step, generate. The cache belongs to the caller.

Plain sampling from the whole distribution; one stream of random numbers for each prompt and sample, so that a
continuation does not depend on what else is written.
"""

import torch
from torch import Tensor, nn

from .. import streams
from ..errors import ModelError
from ..model import Cache, Transformer


def prefill(model: nn.Module, ids: Tensor, cache: Cache | None) -> Tensor:
    """Read the prompt; the logits of what comes next."""
    logits: Tensor = model(ids, cache=cache).logits if cache is not None else model(ids).logits
    return logits[:, -1]


def draw(logits: Tensor, generator: torch.Generator) -> int:
    """One token from the whole distribution."""
    return int(torch.multinomial(logits.float().softmax(-1), 1, generator=generator))


@torch.no_grad()
def generate(
    model: nn.Module, prompt: list[int], max_new_tokens: int, *, seed: int, stop_id: int | None = None
) -> list[int]:
    """Continue one prompt by sampling; stops at the stop token or when the model's context is full."""
    if not prompt:
        raise ModelError("an empty prompt: give at least one token to start from")
    context = int(model.context)  # type: ignore[arg-type]
    stream = torch.Generator().manual_seed(streams.key(seed, "decode", *prompt))
    ids = prompt[-context:]
    # A model that breaks the law of the cache reads the whole text anew at each step; so does one without a cache.
    cached = isinstance(model, Transformer) and "cache" not in model.breaks
    cache = Cache(len(model.layers)) if cached else None  # type: ignore[arg-type]
    logits = prefill(model, torch.tensor([ids]), cache)
    made: list[int] = []
    while len(made) < max_new_tokens:
        token = draw(logits[0], stream)
        if token == stop_id:
            break
        made.append(token)
        if len(ids) + len(made) >= context and cache is not None:
            cache = None  # from here on the window slides, and positions start anew
        seen = [token] if cache is not None else [*prompt, *made][-context:]
        logits = prefill(model, torch.tensor([seen]), cache)
    return made
