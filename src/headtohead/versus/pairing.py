"""Random numbers keyed by seed and name, so that variants trained with the same seed differ only in the change.

    pair = headtohead.paired(seed)
    pair.initialize(model)                                # initial weights by (seed, module name)
    for step in range(steps):
        rows = pair.draw_rows(step, num_rows, batch_size)  # batches by (seed, step)

With a single random number generator, an additional layer would shift all later draws, so the variants would start from
different weights and see different batches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headtohead import rng

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn


def paired(seed: int) -> Pairing:
    """Return a source of random initial weights and batches for this seed."""
    return Pairing(seed)


@dataclass(frozen=True)
class Pairing:
    """Random draws that depend only on the seed and on their name or step."""

    seed: int

    def initialize(self, model: nn.Module, init_weights: Callable[[nn.Module], None] | None = None) -> None:
        """Initialize each module of a model from (seed, module name).

        `init_weights` initializes one module, as in `model.apply(init_weights)`. By default, each module's
        `reset_parameters` is called, which overrides any initialization in the model's constructor.
        """
        from headtohead.nn.random_state import fork_seeded_rng
        from headtohead.nn.seeded_init import init_parameters

        if init_weights is None:
            init_parameters(model, self.seed)
            return
        for name, module in model.named_modules():
            with fork_seeded_rng(self.seed, "initial", name):
                init_weights(module)

    def draw_rows(self, step: int, num_rows: int, batch_size: int) -> Tensor:
        """Return uniformly drawn row indices or start positions, (batch_size,), for the batch at a step."""
        import torch

        return torch.randint(num_rows, (batch_size,), generator=self.make_generator("batches", step))

    def make_generator(self, *labels: int | str) -> torch.Generator:
        """Return a generator for a different purpose, as in `make_generator("dropout", step)`."""
        import torch

        return torch.Generator().manual_seed(rng.derive_seed(self.seed, *labels))
