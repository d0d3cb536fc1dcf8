"""Random numbers of a training script by seed and name, so that variants with equal seeds differ only in the change.

    pair = headtohead.paired(seed)
    pair.initialize(model)                                # initial weights by (seed, module name)
    for step in range(steps):
        rows = pair.draw_rows(step, num_rows, batch_size)  # batches by (seed, step)

With one random stream for everything, an additional layer shifts all later draws, and the variants start from other
weights and see other batches.
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
    """Return the random numbers of a seed for initial weights and batches."""
    return Pairing(seed)


@dataclass(frozen=True)
class Pairing:
    """Random draws that depend on the seed and on their name or step only."""

    seed: int

    def initialize(self, model: nn.Module, init_weights: Callable[[nn.Module], None] | None = None) -> None:
        """Initialise each module of a model from (seed, module name).

        `init_weights` initialises one module, as in `model.apply(init_weights)`. Without it, `reset_parameters` of each
        module is called, which replaces an initialisation in the constructor of the model.
        """
        from headtohead.nn.init import init_parameters
        from headtohead.nn.torch_rng import fork_seeded_rng

        if init_weights is None:
            init_parameters(model, self.seed)
            return
        for name, module in model.named_modules():
            with fork_seeded_rng(self.seed, "initial", name):
                init_weights(module)

    def draw_rows(self, step: int, num_rows: int, batch_size: int) -> Tensor:
        """Return the indices (batch_size) of the rows or start positions in the batch of a step, drawn uniformly."""
        import torch

        return torch.randint(num_rows, (batch_size,), generator=self.make_generator("batches", step))

    def make_generator(self, *labels: int | str) -> torch.Generator:
        """Return a generator for draws of any purpose: `make_generator("dropout", step)`."""
        import torch

        return torch.Generator().manual_seed(rng.derive_seed(self.seed, *labels))
