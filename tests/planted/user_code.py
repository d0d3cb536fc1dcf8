"""Networks with mistakes in ordinary model code that are detected before training, in the saved weights or by warnings.

The file imports nothing from its folder, so that an experiment file can refer to every class.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Decoder(nn.Module):
    """Causal average of the embeddings. Subclasses change one method."""

    def __init__(self, vocab_size: int, context: int, width: int = 12) -> None:
        super().__init__()
        self.vocab_size, self.width = vocab_size, width
        self.embedding, self.norm = nn.Embedding(vocab_size, width), nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab_size)
        self.build()

    def build(self) -> None:
        """Create the modules of a subclass."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Any:
        x = self.embedding(input_ids)
        means = x.cumsum(1) / torch.arange(1, x.shape[1] + 1)[:, None]
        logits: Tensor = self.head(self.transform(self.norm(x + means)))
        return logits

    def transform(self, x: Tensor) -> Tensor:
        return x


# ---- refused before training


class LayersInList(Decoder):
    def build(self) -> None:
        self.layers = [nn.Linear(self.width, self.width) for _ in range(2)]

    def transform(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x).tanh()
        return x


class LayersInDict(LayersInList):
    def build(self) -> None:
        self.by_name = {"first": nn.Linear(self.width, self.width)}

    def transform(self, x: Tensor) -> Tensor:
        return self.by_name["first"](x)


class PlainTensor(Decoder):
    def build(self) -> None:
        self.scale = torch.ones(self.width, requires_grad=True)

    def transform(self, x: Tensor) -> Tensor:
        return x * self.scale


class WordDropoutInPlace(Decoder):
    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Any:
        if self.training:
            input_ids[torch.rand(input_ids.shape) < 0.3] = 1
        return super().forward(input_ids)


class SoftmaxBeforeLoss(Decoder):
    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Any:
        return super().forward(input_ids).softmax(-1)


class TrainsItself(Decoder):
    """Takes its own optimizer steps in every forward pass."""

    rate, first_pass, passes = 0.01, 0, 0

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Any:
        self.passes += 1
        if self.passes > self.first_pass:
            with torch.enable_grad():
                logits = super().forward(input_ids)
                loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), input_ids[:, 1:].flatten())
                gradients = torch.autograd.grad(loss, list(self.parameters()))
            with torch.no_grad():
                for parameter, gradient in zip(self.parameters(), gradients, strict=True):
                    parameter.sub_(gradient, alpha=self.rate)
        return super().forward(input_ids)


class TrainsItselfInEvaluation(TrainsItself):
    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Any:
        return Decoder.forward(self, input_ids) if self.training else super().forward(input_ids)


class GradientsLeftOff(Decoder):
    """Disables gradients in evaluation mode and never enables them again."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Any:
        torch.set_grad_enabled(self.training)
        return super().forward(input_ids)


class DefaultDtype(Decoder):
    def build(self) -> None:
        torch.set_default_dtype(torch.float64)


class ReplacedLayerNorm(Decoder):
    def build(self) -> None:
        nn.LayerNorm.forward = lambda self, x: x  # type: ignore[method-assign]


class StepInTrainingLoss(Decoder):
    """Takes an optimizer step of its own in its training loss."""

    def build(self) -> None:
        self.own_optimizer = torch.optim.SGD(self.parameters(), lr=0.1)

    def training_loss(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        F.cross_entropy(self(input_ids).flatten(0, 1), labels.flatten()).backward()
        self.own_optimizer.step()
        return F.cross_entropy(self(input_ids).flatten(0, 1), labels.flatten())


class StepInHook(Decoder):
    """Updates weights in a hook on their gradients."""

    def build(self) -> None:
        self.head.weight.register_hook(self.update)

    def update(self, gradient: Tensor) -> None:
        self.head.weight.data -= 0.1 * gradient


class LayerInForward(Decoder):
    """Creates a layer in its first forward pass, after the optimizer was built."""

    def transform(self, x: Tensor) -> Tensor:
        if not hasattr(self, "layer"):
            self.layer = nn.Linear(self.width, self.width)
        return x + self.layer(x)


# ---- refused by no rule: registered, frozen or derived values


class SharedReferences(Decoder):
    """Keeps registered layers in a second list, and a frozen table in a plain attribute."""

    def build(self) -> None:
        self.first, self.table = nn.Linear(self.width, self.width), torch.ones(self.width)
        self.order = [self.first]

    def transform(self, x: Tensor) -> Tensor:
        return self.order[0](x) * self.table


class LogProbabilities(Decoder):
    """Returns log-probabilities, which the softmax of the loss leaves unchanged."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Any:
        return super().forward(input_ids).log_softmax(-1)


class LocalDtype(Decoder):
    """Changes the default dtype temporarily."""

    def build(self) -> None:
        torch.set_default_dtype(torch.float64)
        self.register_buffer("angles", torch.ones(self.width))
        torch.set_default_dtype(torch.float32)

    def transform(self, x: Tensor) -> Tensor:
        return x * self.angles.to(x.dtype)


class LimitedNorm(Decoder):
    """Limits the norm of its embeddings in place in every forward pass."""

    def build(self) -> None:
        self.embedding = nn.Embedding(self.vocab_size, self.width, max_norm=1.0)


class BinaryWeights(Decoder):
    """Replaces weights by their signs before use, after Courbariaux et al. 2015."""

    def build(self) -> None:
        self.linear = nn.Linear(self.width, self.width, bias=False)

    def transform(self, x: Tensor) -> Tensor:
        self.linear.weight.data = self.linear.weight.data.sign()
        return x + self.linear(x)


class NumpyNoise(Decoder):
    """Draws initial weights and dropout from the global generators of numpy and Python."""

    def build(self) -> None:
        self.embedding.weight.data = torch.tensor(np.random.randn(self.vocab_size, self.width), dtype=torch.float32)  # noqa: NPY002

    def transform(self, x: Tensor) -> Tensor:
        return x * random.random() if self.training else x


class TwoTokensAhead(Decoder):
    """Also trains a second head, which scoring does not use, to predict two tokens ahead."""

    def build(self) -> None:
        self.second_head = nn.Linear(self.vocab_size, self.vocab_size)

    def training_loss(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        logits = self(input_ids)
        ahead = self.second_head(logits)[:, :-1].flatten(0, 1)
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten()) + F.cross_entropy(ahead, labels[:, 1:].flatten())


# ---- scores that the saved weights do not give


class TrainsItselfLater(TrainsItselfInEvaluation):
    """Takes tiny optimizer steps of its own after a number of forward passes."""

    rate, first_pass = 1e-4, 30


class AveragedWeights(Decoder):
    """Scores with an exponential moving average of its weights, stored in a dictionary."""

    def build(self) -> None:
        self.average: dict[str, Tensor] = {}

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Any:
        if self.training:
            for name, weight in self.head.named_parameters():
                self.average[name] = 0.9 * self.average.get(name, weight.detach()) + 0.1 * weight.detach()
            return super().forward(input_ids)
        weight, bias = (self.average.get(name, getattr(self.head, name)) for name in ("weight", "bias"))
        x = self.embedding(input_ids)
        means = x.cumsum(1) / torch.arange(1, x.shape[1] + 1)[:, None]
        return F.linear(self.norm(x + means), weight, bias)


class RegisteredAverage(Decoder):
    """Scores with an exponential moving average of its output bias, stored in a registered buffer."""

    def build(self) -> None:
        self.register_buffer("average", torch.zeros(self.vocab_size))

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Any:
        logits = super().forward(input_ids)
        if self.training:
            self.average = 0.9 * self.average + 0.1 * self.head.bias.detach()
            return logits
        return logits - self.head.bias + self.average


class DatastoreInDict(Decoder):
    """Stores in a dictionary which token followed each pair in training."""

    def build(self) -> None:
        self.followers: dict[tuple[int, int], int] = {}

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Any:
        logits = super().forward(input_ids).clone()
        for row, ids in enumerate(input_ids.tolist()):
            for position in range(1, len(ids)):
                pair = ids[position - 1], ids[position]
                if self.training and position + 1 < len(ids):
                    self.followers[pair] = ids[position + 1]
                elif not self.training and pair in self.followers:
                    logits[row, position, self.followers[pair]] += 2.0
        return logits


class TrainsItselfLateInTraining(TrainsItselfInEvaluation):
    """Takes optimizer steps of its own in training mode, after a number of forward passes."""

    first_pass = 12

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Any:
        return TrainsItself.forward(self, input_ids) if self.training else Decoder.forward(self, input_ids)


# ---- warnings


class SeedsItself(Decoder):
    def build(self) -> None:
        torch.manual_seed(1337)
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.1)


class DropoutInEvaluation(Decoder):
    """Applies dropout in evaluation mode too."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Any:
        return F.dropout(super().forward(input_ids), 0.3)


class DetachedLayers(Decoder):
    """Detaches the gradient of all layers except the output."""

    def transform(self, x: Tensor) -> Tensor:
        return super().transform(x).detach()


class FrozenBody(Decoder):
    """Freezes all layers, then adds a new output layer."""

    def build(self) -> None:
        self.requires_grad_(False)
        self.head = nn.Linear(self.width, self.vocab_size)


class LabelsShiftedTwice(Decoder):
    """Minimizes the loss of the token after the next."""

    def training_loss(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self(input_ids)[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


class LabelsNotShifted(Decoder):
    """Minimizes the loss of the current token."""

    def training_loss(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self(input_ids).flatten(0, 1), input_ids.flatten())


class LossOfNumber(Decoder):
    """Minimizes a tensor that it made from a number."""

    def training_loss(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        loss = F.cross_entropy(self(input_ids).flatten(0, 1), labels.flatten())
        return torch.tensor(loss.item(), requires_grad=True)


class UnseededDropout(Decoder):
    """Draws dropout from a generator without a seed."""

    def transform(self, x: Tensor) -> Tensor:
        is_kept = torch.tensor(np.random.default_rng().random(x.shape) < 0.7)
        return x * is_kept if self.training else x


class UnseededWeights(Decoder):
    """Draws initial weights from a generator without a seed."""

    def build(self) -> None:
        self.embedding.weight.data = torch.tensor(np.random.default_rng().normal(size=(self.vocab_size, 12))).float()


class RepeatedLayer(Decoder):
    """Lists one layer three times."""

    def build(self) -> None:
        self.layers = nn.ModuleList([nn.Linear(self.width, self.width)] * 3)

    def transform(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x).tanh()
        return x
