"""Parts of the slot `objective`: terms of the training loss, computed from the output of a model and summed.

They only affect training: a model is always scored by its cross entropy."""

from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from headtohead.data.batches import IGNORE_INDEX
from headtohead.errors import RequestError
from headtohead.nn.parts.base import ModelSizes, Part
from headtohead.nn.parts.context import ForwardContext
from headtohead.nn.parts.registry import register_part
from headtohead.nn.protocol import ModelOutput

Labels = Int[Tensor, "batch length"] | Int[Tensor, "batch"]


class Objective(Part):
    """Base class of objectives. Parameters of an objective are trained with those of the model, and then discarded.

    `sizes` are those of the model; they are 0 for a model that is not composed of parts."""

    def forward(
        self, model: nn.Module, output: ModelOutput, labels: Labels, context: ForwardContext
    ) -> Float[Tensor, ""]:
        """Return the loss of a batch.

        Args:
            model: The model that is trained.
            output: Logits, (batch, length, vocab) or (batch, classes), and the last hidden states if the model is
                composed of parts.
            labels: The next or masked tokens, -100 where nothing is predicted; the classes of a classifier.
            context: The inputs of the pass.
        """
        raise NotImplementedError


def select_predictions(
    logits: Float[Tensor, "*positions out"], labels: Labels
) -> tuple[Float[Tensor, "predictions out"], Int[Tensor, "predictions"]]:
    """Return the logits and labels of predicted positions, whose label is not -100, for the loss of an objective."""
    is_predicted = labels != IGNORE_INDEX
    return logits[is_predicted], labels[is_predicted]


def compute_cross_entropy(
    logits: Float[Tensor, "*positions out"], labels: Labels, label_smoothing: float = 0.0
) -> Float[Tensor, ""]:
    """Return the mean cross entropy over all predictions, the default part of the slot `objective`."""
    logits, labels = logits.flatten(0, -2), labels.flatten()
    return F.cross_entropy(logits, labels, ignore_index=IGNORE_INDEX, label_smoothing=label_smoothing)


@register_part("objective", "cross-entropy")
class CrossEntropyObjective(Objective):
    """Mean cross entropy, optionally with label smoothing. After Szegedy et al. 2016, arXiv:1512.00567."""

    def __init__(self, sizes: ModelSizes, *, label_smoothing: float = 0.0) -> None:
        super().__init__(sizes)
        if not 0 <= label_smoothing < 1:
            raise RequestError(f"cross-entropy: label_smoothing must be in [0, 1), got {label_smoothing}")
        self.label_smoothing = label_smoothing

    def forward(
        self, model: nn.Module, output: ModelOutput, labels: Labels, context: ForwardContext
    ) -> Float[Tensor, ""]:
        return compute_cross_entropy(output.logits, labels, self.label_smoothing)


@register_part("objective", "z-loss")
class ZLossObjective(Objective):
    """Penalize the squared log of the softmax normalizer. After Chowdhery et al. 2022, arXiv:2204.02311."""

    def __init__(self, sizes: ModelSizes, *, weight: float = 1e-4) -> None:
        super().__init__(sizes)
        self.weight = weight

    def forward(
        self, model: nn.Module, output: ModelOutput, labels: Labels, context: ForwardContext
    ) -> Float[Tensor, ""]:
        logits, _ = select_predictions(output.logits, labels)
        return self.weight * logits.logsumexp(-1).square().mean()
