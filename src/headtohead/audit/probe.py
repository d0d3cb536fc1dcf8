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

from headtohead.audit.tolerance import EXACT_TOLERANCE, ROUNDING_TOLERANCE, Difference, measure_difference
from headtohead.config import model
from headtohead.config.tasks import Target
from headtohead.errors import ModelError
from headtohead.nn.custom_model import CustomModel
from headtohead.nn.parts.pattern import Pattern
from headtohead.nn.protocol import ModelOutput
from headtohead.nn.torch_rng import fork_seeded_rng

NUM_ROWS = 4
MIN_LENGTH_LIMIT, MAX_BLOCKED_LENGTH = 32, 512
MAX_PARAMETER_TOKENS = 4 * 10**8
"""parameters times tokens of one pass: longer texts are tried only while a pass takes a fraction of a second"""

InputIds = Int[Tensor, "batch length"]
PaddingMask = Bool[Tensor, "batch length"]
Nondeterminism = Literal["none", "drawn", "hidden"]


class UnsupportedInputError(Exception):
    """The model raised; the text says what."""


class ModuleAdapter(CustomModel):
    """A network that is at hand already, behind our protocol."""

    def __init__(self, module: nn.Module, vocab_size: int, num_classes: int | None, context: int) -> None:
        nn.Module.__init__(self)
        self.model_config = model.CustomModelConfig.model_construct(
            module=type(module).__name__, context=context, options={}
        )
        self.context, self.classes, self.vocab_size, self.inner = context, num_classes, vocab_size, module
        self._forward_parameters = frozenset(inspect.signature(module.forward).parameters)


class AuditedModel:
    """The copy, texts to try it with, and passes that can be repeated."""

    def __init__(
        self,
        model: nn.Module,
        *,
        target: Target,
        vocab_size: int,
        context: int,
        num_classes: int | None = None,
        pad_id: int | None = None,
        input_ids: InputIds | None = None,
        audit_training_mode: bool = True,
        seed: int = 0,
        perturb_if_insensitive: bool = True,
    ) -> None:
        if target.is_class and num_classes is None:
            raise ModelError("a classifier can be audited only when the number of its classes is given")
        self.is_causal, self.predicts_tokens = target.is_causal, not target.is_class
        self.vocab, self.context, self.pad_id, self.seed = vocab_size, context, pad_id, seed
        if self._num_content_tokens < 2:
            raise ModelError(f"a vocabulary of {vocab_size} leaves no other token to try")
        self.model = _deepcopy_model(
            _wrap_bare_module(model, vocab_size, num_classes if target.is_class else None, context)
        )
        self.takes = _find_supported_arguments(self.model)
        self.parameters = sum(p.numel() for p in self.model.parameters())
        affordable = MAX_PARAMETER_TOKENS // (NUM_ROWS * max(1, self.parameters))
        self.length = min(context, max(affordable, MIN_LENGTH_LIMIT, _find_blocked_attention_length(self.model)))
        self.ids = self._texts(input_ids)
        self.length = self.ids.shape[1]
        self._initial_buffers: list[tuple[Tensor, Tensor]] = []
        self._repeat_differences: dict[tuple[int, bool], Difference] = {}
        self.dtype = self._select_dtype()
        self._audit_training_mode = audit_training_mode
        self.is_perturbed = perturb_if_insensitive and self._is_input_insensitive() and self._perturb_weights()

    # ---- texts

    @property
    def _num_content_tokens(self) -> int:
        return self.vocab - (self.pad_id is not None)

    def _index_to_token(self, index: Tensor) -> Tensor:
        """The index-th token, padding not counted."""
        return index if self.pad_id is None else index + (index >= self.pad_id).long()

    def _token_to_index(self, input_ids: Tensor) -> Tensor:
        return input_ids if self.pad_id is None else input_ids - (input_ids > self.pad_id).long()

    def _draw(self, low: int, high: int, shape: tuple[int, ...], draw_index: int) -> Tensor:
        generator = torch.Generator().manual_seed(1000 * self.seed + draw_index)
        return torch.randint(low, high, shape, generator=generator).to(self._device)

    @cached_property
    def _device(self) -> torch.device:
        return next((p.device for p in self.model.parameters()), torch.device("cpu"))

    def _texts(self, input_ids: Tensor | None) -> InputIds:
        if input_ids is None or input_ids.shape[1] < 2:
            return self._index_to_token(self._draw(0, self._num_content_tokens, (NUM_ROWS, self.length), 0))
        if int(input_ids.max()) >= self.vocab or int(input_ids.min()) < 0:
            raise ModelError(
                f"ids to audit with run from {int(input_ids.min())} to {int(input_ids.max())}, not 0 to vocab - 1"
            )
        rows = input_ids[:NUM_ROWS, : self.length].to(self._device)
        more = self._index_to_token(self._draw(0, self._num_content_tokens, (NUM_ROWS - len(rows), rows.shape[1]), 1))
        return torch.cat((rows, more))

    def others(self, input_ids: InputIds, draw_index: int = 0) -> InputIds:
        """Another token in every place, never padding."""
        step = self._draw(1, self._num_content_tokens, tuple(input_ids.shape), 2 + draw_index)
        return self._index_to_token((self._token_to_index(input_ids) + step) % self._num_content_tokens)

    def replace_tokens_from(self, input_ids: InputIds, start: int, draw_index: int = 0) -> InputIds:
        """Other tokens from `cut` on."""
        return torch.cat((input_ids[:, :start], self.others(input_ids[:, start:], draw_index)), dim=1)

    # ---- passes

    def run(
        self,
        input_ids: InputIds,
        attention_mask: PaddingMask | None = None,
        *,
        training: bool = False,
        draw_index: int = 0,
        **how: Any,
    ) -> ModelOutput:
        """One pass, from a random state that depends on `draw` only."""
        self._restore_buffers()
        if self.model.training != training:
            self.model.train(training)
        given = (
            (input_ids,)
            if attention_mask is None or "attention_mask" not in self.takes
            else (input_ids, attention_mask)
        )
        with fork_seeded_rng(self.seed, "audit", draw_index):
            try:
                output: ModelOutput = self.model(*given, **how)
            except Exception as error:  # whatever a user's network raises means that it does not take this
                raise UnsupportedInputError(f"{type(error).__name__}: {error}") from error
        return output

    def logits(
        self,
        input_ids: InputIds,
        attention_mask: PaddingMask | None = None,
        *,
        training: bool = False,
        draw_index: int = 0,
        **how: Any,
    ) -> Tensor:
        with torch.no_grad():
            return self.run(input_ids, attention_mask, training=training, draw_index=draw_index, **how).logits

    def compute_input_gradient(
        self,
        input_ids: InputIds,
        attention_mask: PaddingMask | None,
        selection: Tensor | slice | None,
        *,
        training: bool = False,
    ) -> Tensor | None:
        """How the kept logits move with the embedding of each token: (batch, length), the largest of each place. None
        when no embedding layer sees the tokens."""
        with self.capture_embeddings(input_ids) as held:
            logits = self.run(input_ids, attention_mask, training=training).logits
        if not held:
            return None
        kept = (
            logits
            if selection is None
            else logits[selection]
            if isinstance(selection, Tensor)
            else logits[:, selection]
        )
        total = (kept * self._draw_output_weights(kept)).sum()
        found: tuple[Tensor | None, ...] = torch.autograd.grad(total, held, allow_unused=True)
        sizes = [g.abs().amax(-1) for g in found if g is not None]
        return (
            torch.stack(sizes).amax(0)
            if sizes
            else torch.zeros(input_ids.shape, dtype=self.dtype, device=input_ids.device)
        )

    def compute_weight_gradients(self, logits: Tensor) -> dict[str, Tensor]:
        """How each weight moves these logits, by name; one that is not used has no entry."""
        named = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        found: tuple[Tensor | None, ...] = torch.autograd.grad(
            (logits * self._draw_output_weights(logits)).sum(), list(named.values()), allow_unused=True
        )
        return {name: gradient for name, gradient in zip(named, found, strict=True) if gradient is not None}

    @contextmanager
    def capture_embeddings(self, input_ids: InputIds) -> Iterator[list[Tensor]]:
        """The outputs of every embedding layer that is given exactly these tokens, as leaves to take gradients by."""
        held: list[Tensor] = []

        def note(_module: nn.Module, given: tuple[Any, ...], out: Tensor) -> Tensor:
            if not (given and isinstance(given[0], Tensor) and given[0].shape == input_ids.shape):
                return out
            if not torch.equal(given[0], input_ids):
                return out
            held.append(out.detach().requires_grad_())
            return held[-1]

        hooks = [m.register_forward_hook(note) for m in self.model.modules() if isinstance(m, nn.Embedding)]
        try:
            yield held
        finally:
            for hook in hooks:
                hook.remove()

    def _draw_output_weights(self, outputs: Tensor) -> Tensor:
        """A weight for each output, so that no two can cancel by chance."""
        generator = torch.Generator().manual_seed(self.seed)
        places, choices = (
            torch.randn(size, generator=generator).to(outputs) for size in (outputs.shape[:-1], outputs.shape[-1:])
        )
        return places[..., None] * choices

    def _restore_buffers(self) -> None:
        with torch.no_grad():
            for buffer, was in self._initial_buffers:
                buffer.copy_(was)

    # ---- what kind of model it is

    @property
    def exact(self) -> float:
        return EXACT_TOLERANCE[self.dtype]

    @property
    def rounding_tolerance(self) -> float:
        return ROUNDING_TOLERANCE[self.dtype]

    @property
    def how(self) -> str:
        """The end of every "tried"."""
        name = "float64" if self.dtype == torch.float64 else "float32, because the model refuses float64,"
        woken = (
            "; every weight was nudged first, because as it is the model does not listen" if self.is_perturbed else ""
        )
        return f"in {name} on a copy{woken}"

    @cached_property
    def training(self) -> bool:
        """Are the laws to be tried in training mode too, and can they be: is a pass the same for the same draws?"""
        return self._audit_training_mode and self.measure_repeat(draw_index=0, training=True).equal

    @cached_property
    def noise(self) -> Nondeterminism:
        """Does the same text get the same answer: always, for the same random draws only, or not even then?"""
        if not self.measure_repeat(draw_index=0).equal:
            return "hidden"
        return "none" if all(self.measure_repeat(draw_index=draw).equal for draw in (1, 2, 3)) else "drawn"

    def measure_repeat(self, *, draw_index: int, training: bool = False) -> Difference:
        """The same text once more, from this random state."""
        if (draw_index, training) not in self._repeat_differences:
            first = self.logits(self.ids[:2], training=training)
            again = self.logits(self.ids[:2], training=training, draw_index=draw_index)
            where = "the same again" if draw_index == 0 else f"from random state {draw_index}"
            self._repeat_differences[draw_index, training] = measure_difference(again, first, where, self.exact)
        return self._repeat_differences[draw_index, training]

    def _select_dtype(self) -> torch.dtype:
        """The precision that the model takes."""
        refusals = []
        self.model.eval()  # all of it: a copy may come with modules in different modes
        for dtype in (torch.float64, torch.float32):
            self.model.to(dtype)
            self._initial_buffers = [(b, b.detach().clone()) for b in self.model.buffers()]
            try:
                self.logits(self.ids)
            except UnsupportedInputError as refusal:
                refusals.append(str(refusal))
            else:
                return dtype
        raise ModelError(f"a pass over {NUM_ROWS} texts of {self.length} tokens fails: {refusals[-1]}")

    def _is_input_insensitive(self) -> bool:
        """Zeros in an output or a gate can hide what a model does: nothing it reads elsewhere moves its answer."""
        ids = self.ids[:2]
        other = self.others(ids)
        if self.predicts_tokens:
            other = torch.cat((other[:, :-1], ids[:, -1:]), dim=1)
        one, two = self.logits(ids), self.logits(other)
        return (
            measure_difference(one, two, "", self.exact).equal
            if not self.predicts_tokens
            else torch.equal(one[:, -1], two[:, -1])
        )

    def _perturb_weights(self) -> bool:
        """Move every weight a little."""
        with torch.no_grad(), fork_seeded_rng(self.seed, "audit", "nudge"):
            for parameter in self.model.parameters():
                if parameter.requires_grad:
                    parameter.add_(torch.randn_like(parameter), alpha=0.05)
        return True

    def copy_without_buffer_restore(self) -> AuditedModel:
        """The same model, whose buffers stay as they are between passes: to try what changing one does."""
        twin = copy.copy(self)
        twin._initial_buffers = []
        return twin

    def copy_with_perturbed_weights(self) -> AuditedModel:
        """The same with every weight moved a little."""
        twin = copy.copy(self)
        twin.model = copy.deepcopy(self.model)
        twin._repeat_differences, twin.is_perturbed = {}, twin._perturb_weights()
        return twin


def _find_blocked_attention_length(model: nn.Module) -> int:
    """So long a text that a window takes the road that cuts it into blocks (`Sight.is_band`); 0 without a window."""
    reaches = [m.window_size for m in model.modules() if isinstance(m, Pattern)]
    ends = [end for reach in reaches if None not in reach for end in reach if end is not None]
    return min(MAX_BLOCKED_LENGTH, 4 * max(16, *ends) + 7) if ends else 0


def _wrap_bare_module(model: nn.Module, vocab_size: int, num_classes: int | None, context: int) -> nn.Module:
    """Models of the protocol take a cache and give maps when asked; anything else is a bare network."""
    takes = inspect.signature(model.forward).parameters
    return (
        model
        if {"cache", "output_attentions"} <= set(takes)
        else ModuleAdapter(model, vocab_size, num_classes, context)
    )


def _find_supported_arguments(model: nn.Module) -> frozenset[str]:
    """Which of the protocol's extras the model really has."""
    inner = model.inner if isinstance(model, CustomModel) else model
    known = (
        {"attention_mask"}
        if isinstance(model, CustomModel)
        else {"attention_mask", "cache", "output_attentions", "attn_implementation"}
    )
    return frozenset(known & set(inspect.signature(inner.forward).parameters))


def _deepcopy_model(model: nn.Module) -> nn.Module:
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
