"""SOAP: Adam in the eigenbasis of Shampoo's preconditioner. After Vyas et al. 2024, arXiv:2409.11321."""

import torch

from headtohead.parts import Optimizer, register_part


def rotate(x, *bases):
    """Multiply a matrix by a basis on each side."""
    return x if bases == () else bases[0].T @ x @ bases[1]


@register_part("optimizer", "soap")
class SOAP(Optimizer):
    """Adam on rotated matrices, whose bases change every `every` steps; those above `max_size` are not rotated."""

    def __init__(
        self, parameters, *, lr: float = 3e-3, weight_decay: float = 0.01, every: int = 10, max_size: int = 1024
    ):
        super().__init__(parameters, lr=lr, weight_decay=weight_decay)
        self.every, self.max_size = every, max_size

    def update(self, parameter, gradient, state, context):
        mean, square = (state.setdefault(key, torch.zeros_like(gradient)) for key in ("mean", "square"))
        mean.lerp_(gradient, 0.05)
        is_rotated = gradient.dim() == 2 and max(gradient.shape) <= self.max_size
        for key, side in (("left", gradient), ("right", gradient.T)) if is_rotated else ():
            gram = state.setdefault(f"{key} gram", side @ side.T * 0).lerp_(side @ side.T, 0.05)
            if key not in state:
                state[key] = torch.linalg.eigh(gram).eigenvectors
            elif context.step % self.every == 0:
                state[key] = torch.linalg.qr(gram @ state[key]).Q
        bases = (state["left"], state["right"]) if is_rotated else ()
        square.lerp_(rotate(gradient, *bases).square(), 0.05)
        correction = 1 - 0.95 ** (context.step + 1)
        update = rotate(mean / correction, *bases) / ((square / correction).sqrt() + 1e-8)
        update = rotate(update, *[basis.T for basis in bases])
        parameter.sub_(context.lr * (update + context.weight_decay * parameter))
