"""Parts of the slot `objective`: terms of the training loss, computed from the output of a model and summed.

They only affect training: a model is always scored by its cross entropy."""

from collections.abc import Sequence

from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from headtohead.config.base import ComponentConfig
from headtohead.data.batches import IGNORE_INDEX
from headtohead.errors import RequestError
from headtohead.nn.custom_model import CustomModel
from headtohead.nn.parts import registry
from headtohead.nn.parts.base import ModelSizes, Part
from headtohead.nn.parts.context import ForwardContext
from headtohead.nn.parts.registry import register_part
from headtohead.nn.protocol import ModelOutput
from headtohead.nn.random_state import fork_seeded_rng
from headtohead.nn.seeded_init import init_parameters
from headtohead.nn.transformer import Transformer

UNKNOWN_SIZES = ModelSizes(width=0, heads=0, head_dim=0, layers=0, context=0, vocab_size=0, is_causal=False)
"""Sizes that parts of the slot `objective` receive if the model is not composed of parts."""
OBJECTIVE_MODULE = "training_objective"
"""Name of the module that holds the parameters of objective parts in the model during training."""

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


def attach_objective_parts(model: nn.Module, part_configs: Sequence[ComponentConfig], seed: int) -> list[Objective]:
    """Build the parts of a task's training loss and add their parameters to the model.

    The parameters remain part of the model, and are trained and saved in checkpoints, until `remove_objective_parts` is
    called.

    Args:
        model: The model to train.
        part_configs: Names and options of the parts.
        seed: Seed of their initial parameters.

    Returns:
        The parts; an empty list for the plain cross entropy.
    """
    if list(part_configs) == [ComponentConfig(kind="cross-entropy")]:
        return []
    if isinstance(model, CustomModel) and model.has_training_loss:
        raise RequestError("training.objective: the network defines training_loss(), which would be used instead")
    sizes = model.sizes if isinstance(model, Transformer) else UNKNOWN_SIZES
    with fork_seeded_rng(seed, "initial", OBJECTIVE_MODULE):
        parts: list[Objective] = [registry.build_part("objective", part_config, sizes) for part_config in part_configs]
    named_parts = registry.build_step_modules(parts)
    parent = nn.Module()
    parent.add_module(OBJECTIVE_MODULE, named_parts)
    init_parameters(parent, seed)  # from (seed, module name), as in the model
    if named_parts.state_dict():
        model.add_module(OBJECTIVE_MODULE, named_parts)
    return parts


def remove_objective_parts(model: nn.Module) -> None:
    """Remove the parameters of objective parts from the model."""
    if OBJECTIVE_MODULE in dict(model.named_children()):
        delattr(model, OBJECTIVE_MODULE)
