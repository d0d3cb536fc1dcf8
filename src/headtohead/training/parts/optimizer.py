"""Parts of the slot `optimizer`: how gradients change weights.

Weight decay applies to matrices only, not to biases and norms."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer as TorchOptimizer

from headtohead.errors import DeviceError
from headtohead.nn.parts.base import Component
from headtohead.nn.parts.context import TrainingContext
from headtohead.nn.parts.registry import register_part
from headtohead.training.hardware.precision import is_bfloat16_usable
from headtohead.training.parts.average import TensorState
from headtohead.training.parts.fused_adam import FusedAdam, create_adam

ParamGroup = dict[str, Any]
AnyOptimizer = TorchOptimizer | FusedAdam
LAYER_PARAMETER_PATTERN = re.compile(r"(^|\.)(layers?|blocks?|h)\.\d+\.")
"""Matches the names of parameters inside layers, in models of parts and in common libraries."""


@dataclass(frozen=True)
class TrainableParameter:
    """A parameter of the model, with what an optimizer may know about it."""

    name: str
    parameter: nn.Parameter
    lr_multiplier: float = 1.0
    weight_decay: float | None = None
    """If None, matrices have the weight decay of the optimizer and other parameters have none."""

    @property
    def is_matrix(self) -> bool:
        """Return whether it is a matrix, which has weight decay; biases and norms are vectors."""
        return self.parameter.dim() > 1

    @property
    def is_layer_matrix(self) -> bool:
        """Return whether it is a matrix inside a layer; embedding and output matrices are not."""
        return self.parameter.dim() == 2 and bool(LAYER_PARAMETER_PATTERN.search(self.name))


@dataclass(frozen=True)
class UpdateContext(TrainingContext):
    """What the update of one parameter depends on besides its gradient."""

    lr: float
    """Learning rate at this step, with the schedule and the parameter's multiplier applied."""
    weight_decay: float
    """0 for biases and norms."""
    source: TrainableParameter
    """The parameter, with its name and multiplier."""
    hessian: Tensor | None = None
    """Estimate of the diagonal of the Hessian, with the shape of the parameter; None unless `needs_hessian`."""


class Optimizer(Component):
    """Base class of optimizers. Override `update`, or `build` to use optimizers of another library."""

    def __init__(
        self, parameters: Sequence[TrainableParameter], *, lr: float = 1e-3, weight_decay: float = 0.0
    ) -> None:
        self.parameters, self.lr, self.weight_decay = list(parameters), lr, weight_decay

    def update(self, parameter: Tensor, gradient: Tensor, state: TensorState, context: UpdateContext) -> None:
        """Change a parameter in place. Called without gradient tracking, once per step for each parameter that has a
        gradient. `state` is empty at the first step, and part of checkpoints.
        """
        raise NotImplementedError

    def needs_hessian(self, context: TrainingContext) -> bool:
        """Return whether `update` needs the diagonal of the Hessian at this step, which costs another gradient."""
        return False

    def get_evaluation_weight(self, parameter: Tensor, state: TensorState) -> Tensor:
        """Return the weight to evaluate and to keep, if it is not the one at which gradients are computed."""
        return parameter

    def build(self) -> list[AnyOptimizer]:
        """Return the torch optimizers that run at each step, each with its own parameters.

        By default, a single one calls `update` for each parameter.
        """
        return [OptimizerPartAdapter(self)]

    def check_device(self) -> None:
        """Raise DeviceError if this machine cannot run the optimizer. Called before the first step."""


def build_param_groups(parameters: Sequence[TrainableParameter], lr: float, weight_decay: float) -> list[ParamGroup]:
    """Return the parameter groups of an optimizer part, with equal learning rate and weight decay in each group.

    Unless a parameter sets its own, only matrices have weight decay.
    """
    groups: dict[tuple[float, bool, float], list[nn.Parameter]] = {}
    for trainable in sorted(parameters, key=lambda trainable: not trainable.is_matrix):
        default_decay = weight_decay if trainable.is_matrix else 0.0
        decay = default_decay if trainable.weight_decay is None else trainable.weight_decay
        groups.setdefault((trainable.lr_multiplier, trainable.is_matrix, decay), []).append(trainable.parameter)
    return [
        {"params": group, "weight_decay": decay, "lr": lr * multiplier}
        for (multiplier, _, decay), group in groups.items()
    ]


class OptimizerPartAdapter(TorchOptimizer):
    """The torch optimizer of a part in the slot `optimizer`: calls the part's `update` for each parameter."""

    def __init__(self, part: Optimizer) -> None:
        """Create the torch optimizer of a part in the slot `optimizer` that defines `update`."""
        super().__init__(build_param_groups(part.parameters, part.lr, part.weight_decay), {})
        self.part = part
        self.context = TrainingContext(0, 1)
        self.hessian: Mapping[nn.Parameter, Tensor] = {}
        self._trainable_parameters = {trainable.parameter: trainable for trainable in part.parameters}

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Call the part's `update` for every parameter that has a gradient."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    context = UpdateContext(
                        self.context.step,
                        self.context.total_steps,
                        lr=group["lr"],
                        weight_decay=group["weight_decay"],
                        source=self._trainable_parameters[parameter],
                        hessian=self.hessian.get(parameter),
                    )
                    self.part.update(parameter, parameter.grad, self.state[parameter], context)

    def compute_evaluation_weights(self) -> dict[Tensor, Tensor]:
        """Return the weights to evaluate, of parameters whose optimizer part evaluates different ones."""
        if type(self.part).get_evaluation_weight is Optimizer.get_evaluation_weight:
            return {}
        return {
            parameter: self.part.get_evaluation_weight(parameter.detach(), state)
            for parameter, state in self.state.items()
        }


class AdamOptimizer(Optimizer):
    """Base class of Adam and AdamW."""

    is_decoupled = False
    """True if weight decay is decoupled from the gradient, as in AdamW."""

    def __init__(
        self,
        parameters: Sequence[TrainableParameter],
        *,
        lr: float = 1e-3,
        betas: Sequence[float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        """`betas` are the decay rates of the running averages of gradients and of their squares."""
        super().__init__(parameters, lr=lr, weight_decay=weight_decay)
        self.betas, self.eps = betas, eps

    def build(self) -> list[AnyOptimizer]:
        beta1, beta2 = self.betas
        groups = build_param_groups(self.parameters, self.lr, self.weight_decay)
        return [create_adam(groups, betas=(beta1, beta2), eps=self.eps, decoupled_weight_decay=self.is_decoupled)]


@register_part("optimizer", "adamw")
class AdamW(AdamOptimizer):
    """AdamW. After Loshchilov and Hutter 2019, arXiv:1711.05101."""

    is_decoupled = True

    def __init__(
        self,
        parameters: Sequence[TrainableParameter],
        *,
        lr: float = 1e-3,
        betas: Sequence[float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
    ) -> None:
        super().__init__(parameters, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)


@register_part("optimizer", "adam")
class Adam(AdamOptimizer):
    """Adam. After Kingma and Ba 2015, arXiv:1412.6980."""


@register_part("optimizer", "sgd")
class SGD(Optimizer):
    """Stochastic gradient descent, optionally with momentum."""

    def __init__(
        self,
        parameters: Sequence[TrainableParameter],
        *,
        lr: float = 0.1,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(parameters, lr=lr, weight_decay=weight_decay)
        self.momentum = momentum

    def build(self) -> list[AnyOptimizer]:
        """Return torch's SGD."""
        # On the CPU, the fused kernel leaves parameters of 16 bits unchanged, without an error.
        has_fused_kernel = all(
            trainable.parameter.device.type == "cuda"
            or (trainable.parameter.device.type == "cpu" and trainable.parameter.dtype.itemsize >= 4)
            for trainable in self.parameters
        )
        groups = build_param_groups(self.parameters, self.lr, self.weight_decay)
        return [torch.optim.SGD(groups, lr=self.lr, momentum=self.momentum, fused=has_fused_kernel)]


@register_part("optimizer", "adagrad")
class Adagrad(Optimizer):
    """Adagrad. After Duchi et al. 2011."""

    def __init__(
        self,
        parameters: Sequence[TrainableParameter],
        *,
        lr: float = 0.01,
        eps: float = 1e-10,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(parameters, lr=lr, weight_decay=weight_decay)
        self.eps = eps

    def build(self) -> list[AnyOptimizer]:
        groups = build_param_groups(self.parameters, self.lr, self.weight_decay)
        return [torch.optim.Adagrad(groups, lr=self.lr, eps=self.eps)]


@register_part("optimizer", "muon")
class Muon(Optimizer):
    """Muon (orthogonalized momentum) for matrices inside the layers, AdamW for other parameters. After Jordan 2024."""

    def __init__(
        self,
        parameters: Sequence[TrainableParameter],
        *,
        lr: float = 0.02,
        momentum: float = 0.95,
        weight_decay: float = 0.1,
        adamw_lr: float = 1e-3,
    ) -> None:
        super().__init__(parameters, lr=lr, weight_decay=weight_decay)
        self.momentum, self.adamw_lr = momentum, adamw_lr

    def build(self) -> list[AnyOptimizer]:
        """Return torch's Muon for matrices inside the model, and AdamW for all other parameters."""
        if not hasattr(torch.optim, "Muon"):
            raise DeviceError(f"muon needs torch 2.9 or newer, found {torch.__version__}")
        # Embedding and output layers are matrices too, but Muon is not meant for them.
        layer_matrices = [trainable for trainable in self.parameters if trainable.is_layer_matrix]
        adamw_parameters = [trainable for trainable in self.parameters if not trainable.is_layer_matrix]
        optimizers = AdamW(adamw_parameters, lr=self.adamw_lr).build() if adamw_parameters else []
        if not layer_matrices:  # the layers are frozen
            return optimizers
        groups = build_param_groups(layer_matrices, self.lr, self.weight_decay)
        muon = torch.optim.Muon(groups, lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay)
        return [muon, *optimizers]

    def check_device(self) -> None:
        """Raise DeviceError if bfloat16, in which this optimizer multiplies, does not work on the CPU."""
        # Checked at the first step, because worker processes set the workaround before that.
        is_on_cpu = any(trainable.parameter.device.type == "cpu" for trainable in self.parameters)
        if is_on_cpu and not is_bfloat16_usable():
            raise DeviceError(
                "muon uses bfloat16, which crashes on this machine; set ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 before "
                "starting (`h2h doctor` reports details)"
            )
