"""A model under audit: a copy that can be tried in any way without disturbing the model.

Any model of the protocol, and any nn.Module that maps tokens to logits. The copy is in float64, where what should be
equal is equal to the last digits even when a trained model's logits are large; a network that refuses float64 is
audited in float32. Every pass starts from the same random state and the same buffers, so that dropout, a random shuffle
and running statistics cannot be taken for a leak.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any, Literal

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from headtohead.audit.tolerance import ALIKE, EXACT, Difference, apart
from headtohead.config import model
from headtohead.errors import ModelError
from headtohead.nn.custom_model import OwnModel
from headtohead.nn.parts.pattern import Pattern
from headtohead.nn.protocol import Output
from headtohead.nn.torch_rng import drawing

ROWS = 4
SHORTEST_LONG, LONGEST = 32, 512
BUDGET = 4 * 10**8
"""parameters times tokens of one pass: longer texts are tried only while a pass takes a fraction of a second"""

Ids = Int[Tensor, "batch length"]
Mask = Bool[Tensor, "batch length"]
Noise = Literal["none", "drawn", "hidden"]


class Refused(Exception):  # noqa: N818  (no error of the program: the model does not take this input)
    """The model raised; the text says what."""


class Bare(OwnModel):
    """A network that is at hand already, behind our protocol."""

    def __init__(self, inner: nn.Module, vocab: int, classes: int | None, context: int) -> None:
        nn.Module.__init__(self)
        self.spec = model.OwnModel.model_construct(module=type(inner).__name__, context=context, options={})
        self.context, self.classes, self.vocab, self.inner = context, classes, vocab, inner
        self._takes = frozenset(inspect.signature(inner.forward).parameters)


class Subject:
    """The copy, texts to try it with, and passes that can be repeated."""

    def __init__(
        self,
        model: nn.Module,
        *,
        task: str,
        vocab: int,
        context: int,
        classes: int | None = None,
        pad_id: int | None = None,
        ids: Ids | None = None,
        training: bool = True,
        seed: int = 0,
        wake: bool = True,
    ) -> None:
        if task == "classify" and classes is None:
            raise ModelError("a classifier can be audited only when the number of its classes is given")
        self.decoder = task != "classify"
        self.vocab, self.context, self.pad_id, self.seed = vocab, context, pad_id, seed
        if self._kinds < 2:
            raise ModelError(f"a vocabulary of {vocab} leaves no other token to try")
        self.model = _copied(_behind_protocol(model, vocab, None if self.decoder else classes, context))
        self.takes = _taken(self.model)
        self.parameters = sum(p.numel() for p in self.model.parameters())
        affordable = BUDGET // (ROWS * max(1, self.parameters))
        self.length = min(context, max(affordable, SHORTEST_LONG, _banded(self.model)))
        self.ids = self._texts(ids)
        self.length = self.ids.shape[1]
        self._buffers: list[tuple[Tensor, Tensor]] = []
        self._repeated: dict[tuple[int, bool], Difference] = {}
        self.dtype = self._settle()
        self._in_training = training
        self.woken = wake and self._asleep() and self._nudge()

    # ---- texts

    @property
    def _kinds(self) -> int:
        return self.vocab - (self.pad_id is not None)

    def _token(self, index: Tensor) -> Tensor:
        """The index-th token, padding not counted."""
        return index if self.pad_id is None else index + (index >= self.pad_id).long()

    def _index(self, ids: Tensor) -> Tensor:
        return ids if self.pad_id is None else ids - (ids > self.pad_id).long()

    def _draw(self, low: int, high: int, shape: tuple[int, ...], draw: int) -> Tensor:
        generator = torch.Generator().manual_seed(1000 * self.seed + draw)
        return torch.randint(low, high, shape, generator=generator).to(self._device)

    @cached_property
    def _device(self) -> torch.device:
        return next((p.device for p in self.model.parameters()), torch.device("cpu"))

    def _texts(self, given: Tensor | None) -> Ids:
        if given is None or given.shape[1] < 2:
            return self._token(self._draw(0, self._kinds, (ROWS, self.length), 0))
        if int(given.max()) >= self.vocab or int(given.min()) < 0:
            raise ModelError(f"ids to audit with run from {int(given.min())} to {int(given.max())}, not 0 to vocab - 1")
        rows = given[:ROWS, : self.length].to(self._device)
        more = self._token(self._draw(0, self._kinds, (ROWS - len(rows), rows.shape[1]), 1))
        return torch.cat((rows, more))

    def others(self, ids: Ids, draw: int = 0) -> Ids:
        """Another token in every place, never padding."""
        step = self._draw(1, self._kinds, tuple(ids.shape), 2 + draw)
        return self._token((self._index(ids) + step) % self._kinds)

    def changed(self, ids: Ids, cut: int, draw: int = 0) -> Ids:
        """Other tokens from `cut` on."""
        return torch.cat((ids[:, :cut], self.others(ids[:, cut:], draw)), dim=1)

    # ---- passes

    def run(self, ids: Ids, mask: Mask | None = None, *, training: bool = False, draw: int = 0, **how: Any) -> Output:
        """One pass, from a random state that depends on `draw` only."""
        self._restore()
        if self.model.training != training:
            self.model.train(training)
        given = (ids,) if mask is None or "attention_mask" not in self.takes else (ids, mask)
        with drawing(self.seed, "audit", draw):
            try:
                output: Output = self.model(*given, **how)
            except Exception as error:  # whatever a user's network raises means that it does not take this
                raise Refused(f"{type(error).__name__}: {error}") from error
        return output

    def logits(
        self, ids: Ids, mask: Mask | None = None, *, training: bool = False, draw: int = 0, **how: Any
    ) -> Tensor:
        with torch.no_grad():
            return self.run(ids, mask, training=training, draw=draw, **how).logits

    def input_gradient(
        self, ids: Ids, mask: Mask | None, keep: Tensor | slice | None, *, training: bool = False
    ) -> Tensor | None:
        """How the kept logits move with the embedding of each token: (batch, length), the largest of each place. None
        when no embedding layer sees the tokens."""
        with self.embeddings(ids) as held:
            logits = self.run(ids, mask, training=training).logits
        if not held:
            return None
        kept = logits if keep is None else logits[keep] if isinstance(keep, Tensor) else logits[:, keep]
        total = (kept * self._shares(kept)).sum()
        found: tuple[Tensor | None, ...] = torch.autograd.grad(total, held, allow_unused=True)
        sizes = [g.abs().amax(-1) for g in found if g is not None]
        return torch.stack(sizes).amax(0) if sizes else torch.zeros(ids.shape, dtype=self.dtype, device=ids.device)

    def weight_gradients(self, logits: Tensor) -> dict[str, Tensor]:
        """How each weight moves these logits, by name; one that is not used has no entry."""
        named = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        found: tuple[Tensor | None, ...] = torch.autograd.grad(
            (logits * self._shares(logits)).sum(), list(named.values()), allow_unused=True
        )
        return {name: gradient for name, gradient in zip(named, found, strict=True) if gradient is not None}

    @contextmanager
    def embeddings(self, ids: Ids) -> Iterator[list[Tensor]]:
        """The outputs of every embedding layer that is given exactly these tokens, as leaves to take gradients by."""
        held: list[Tensor] = []

        def note(_module: nn.Module, given: tuple[Any, ...], out: Tensor) -> Tensor:
            if not (given and isinstance(given[0], Tensor) and given[0].shape == ids.shape):
                return out
            if not torch.equal(given[0], ids):
                return out
            held.append(out.detach().requires_grad_())
            return held[-1]

        hooks = [m.register_forward_hook(note) for m in self.model.modules() if isinstance(m, nn.Embedding)]
        try:
            yield held
        finally:
            for hook in hooks:
                hook.remove()

    def _shares(self, out: Tensor) -> Tensor:
        """A weight for each output, so that no two can cancel by chance."""
        generator = torch.Generator().manual_seed(self.seed)
        places, choices = (torch.randn(size, generator=generator).to(out) for size in (out.shape[:-1], out.shape[-1:]))
        return places[..., None] * choices

    def _restore(self) -> None:
        with torch.no_grad():
            for buffer, was in self._buffers:
                buffer.copy_(was)

    # ---- what kind of model it is

    @property
    def exact(self) -> float:
        return EXACT[self.dtype]

    @property
    def alike(self) -> float:
        return ALIKE[self.dtype]

    @property
    def how(self) -> str:
        """The end of every "tried"."""
        name = "float64" if self.dtype == torch.float64 else "float32, because the model refuses float64,"
        woken = "; every weight was nudged first, because as it is the model does not listen" if self.woken else ""
        return f"in {name} on a copy{woken}"

    @cached_property
    def training(self) -> bool:
        """Are the laws to be tried in training mode too, and can they be: is a pass the same for the same draws?"""
        return self._in_training and self.repeated(draw=0, training=True).equal

    @cached_property
    def noise(self) -> Noise:
        """Does the same text get the same answer: always, for the same random draws only, or not even then?"""
        if not self.repeated(draw=0).equal:
            return "hidden"
        return "none" if all(self.repeated(draw=draw).equal for draw in (1, 2, 3)) else "drawn"

    def repeated(self, *, draw: int, training: bool = False) -> Difference:
        """The same text once more, from this random state."""
        if (draw, training) not in self._repeated:
            first = self.logits(self.ids[:2], training=training)
            again = self.logits(self.ids[:2], training=training, draw=draw)
            where = "the same again" if draw == 0 else f"from random state {draw}"
            self._repeated[draw, training] = apart(again, first, where, self.exact)
        return self._repeated[draw, training]

    def _settle(self) -> torch.dtype:
        """The precision that the model takes."""
        refusals = []
        self.model.eval()  # all of it: a copy may come with modules in different modes
        for dtype in (torch.float64, torch.float32):
            self.model.to(dtype)
            self._buffers = [(b, b.detach().clone()) for b in self.model.buffers()]
            try:
                self.logits(self.ids)
            except Refused as refusal:
                refusals.append(str(refusal))
            else:
                return dtype
        raise ModelError(f"a pass over {ROWS} texts of {self.length} tokens fails: {refusals[-1]}")

    def _asleep(self) -> bool:
        """Zeros in an output or a gate can hide what a model does: nothing it reads elsewhere moves its answer."""
        ids = self.ids[:2]
        other = self.others(ids)
        if self.decoder:
            other = torch.cat((other[:, :-1], ids[:, -1:]), dim=1)
        one, two = self.logits(ids), self.logits(other)
        return apart(one, two, "", self.exact).equal if not self.decoder else torch.equal(one[:, -1], two[:, -1])

    def _nudge(self) -> bool:
        """Move every weight a little."""
        with torch.no_grad(), drawing(self.seed, "audit", "nudge"):
            for parameter in self.model.parameters():
                if parameter.requires_grad:
                    parameter.add_(torch.randn_like(parameter), alpha=0.05)
        return True

    def without_restoring(self) -> Subject:
        """The same model, whose buffers stay as they are between passes: to try what changing one does."""
        twin = copy.copy(self)
        twin._buffers = []
        return twin

    def nudged(self) -> Subject:
        """The same with every weight moved a little."""
        twin = copy.copy(self)
        twin.model = copy.deepcopy(self.model)
        twin._repeated, twin.woken = {}, twin._nudge()
        return twin


def _banded(model: nn.Module) -> int:
    """So long a text that a window takes the road that cuts it into blocks (`Sight.is_band`); 0 without a window."""
    reaches = [m.reach for m in model.modules() if isinstance(m, Pattern)]
    ends = [end for reach in reaches if None not in reach for end in reach if end is not None]
    return min(LONGEST, 4 * max(16, *ends) + 7) if ends else 0


def _behind_protocol(model: nn.Module, vocab: int, classes: int | None, context: int) -> nn.Module:
    """Models of the protocol take a cache and give maps when asked; anything else is a bare network."""
    takes = inspect.signature(model.forward).parameters
    return model if {"cache", "maps"} <= set(takes) else Bare(model, vocab, classes, context)


def _taken(model: nn.Module) -> frozenset[str]:
    """Which of the protocol's extras the model really has."""
    inner = model.inner if isinstance(model, OwnModel) else model
    known = {"attention_mask"} if isinstance(model, OwnModel) else {"attention_mask", "cache", "maps", "road"}
    return frozenset(known & set(inspect.signature(inner.forward).parameters))


def _copied(model: nn.Module) -> nn.Module:
    """A deep copy. Tensors that a pass has left behind in the modules (maps kept for a plot) go along detached."""
    memo: dict[int, Any] = {}
    for module in model.modules():
        for value in vars(module).values():
            for one in value if isinstance(value, list | tuple) else (value,):
                if isinstance(one, Tensor) and not one.is_leaf:
                    memo[id(one)] = one.detach().clone()
    try:
        made = copy.deepcopy(model, memo)
    except Exception as error:
        raise ModelError(f"the model cannot be copied, and an audit works on a copy: {error}") from error
    # MPS knows no float64.
    return made.cpu() if any(p.device.type == "mps" for p in made.parameters()) else made
