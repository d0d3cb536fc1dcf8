"""Optimizers and learning-rate schedules by name. The keyword-only arguments of each function are its options.

Weight decay applies to matrices only, not to biases and norms. With per-parameter learning-rate multipliers (layer-wise
decay), parameters are split into groups by multiplier, for every optimizer.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from headtohead.config import training
from headtohead.config.validation.component_options import validate_component
from headtohead.errors import DeviceError, ValidationIssue
from headtohead.pretrained.classifier import EncoderClassifier
from headtohead.training.devices import is_bfloat16_usable
from headtohead.training.fused_adam import FusedAdam, create_adam

NamedParameters = Iterable[tuple[str, nn.Parameter]]
LrMultipliers = Mapping[str, float]
"""Learning-rate multiplier by parameter name; 1 unless listed."""
ParamGroups = list[dict[str, Any]]
AnyOptimizer = Optimizer | FusedAdam
NO_LR_MULTIPLIERS: LrMultipliers = {}
LAYER_PARAMETER_PATTERN = re.compile(r"(^|\.)(layers?|blocks?|h)\.\d+\.")
"""Matches parameters inside the layers, in our models and in the usual libraries."""


def _build_param_groups(
    named_parameters: NamedParameters, lr_multipliers: LrMultipliers, lr: float, weight_decay: float
) -> ParamGroups:
    """Return two groups per multiplier: matrices with weight decay, and other parameters without."""
    by_multiplier: dict[float, tuple[list[nn.Parameter], list[nn.Parameter]]] = {}
    for name, parameter in named_parameters:
        if parameter.requires_grad:
            matrices, vectors = by_multiplier.setdefault(lr_multipliers.get(name, 1.0), ([], []))
            (matrices if parameter.dim() > 1 else vectors).append(parameter)
    groups = []
    for multiplier, (matrices, vectors) in by_multiplier.items():
        groups.append({"params": matrices, "weight_decay": weight_decay, "lr": lr * multiplier})
        groups.append({"params": vectors, "weight_decay": 0.0, "lr": lr * multiplier})
    return [group for group in groups if group["params"]]


def adamw(
    named_parameters: NamedParameters,
    lr_multipliers: LrMultipliers = NO_LR_MULTIPLIERS,
    *,
    lr: float = 1e-3,
    betas: tuple[float, ...] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.01,
) -> list[AnyOptimizer]:
    """AdamW. After Loshchilov and Hutter 2019, arXiv:1711.05101."""
    beta1, beta2 = betas
    groups = _build_param_groups(named_parameters, lr_multipliers, lr, weight_decay)
    return [create_adam(groups, betas=(beta1, beta2), eps=eps, decoupled_weight_decay=True)]


def adam(
    named_parameters: NamedParameters,
    lr_multipliers: LrMultipliers = NO_LR_MULTIPLIERS,
    *,
    lr: float = 1e-3,
    betas: tuple[float, ...] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
) -> list[AnyOptimizer]:
    """Adam. After Kingma and Ba 2015, arXiv:1412.6980."""
    beta1, beta2 = betas
    groups = _build_param_groups(named_parameters, lr_multipliers, lr, weight_decay)
    return [create_adam(groups, betas=(beta1, beta2), eps=eps)]


def sgd(
    named_parameters: NamedParameters,
    lr_multipliers: LrMultipliers = NO_LR_MULTIPLIERS,
    *,
    lr: float = 0.1,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
) -> list[AnyOptimizer]:
    """Stochastic gradient descent, optionally with momentum."""
    named_parameters = list(named_parameters)
    has_fused_kernel = all(parameter.device.type in ("cpu", "cuda") for _, parameter in named_parameters)
    groups = _build_param_groups(named_parameters, lr_multipliers, lr, weight_decay)
    return [torch.optim.SGD(groups, lr=lr, momentum=momentum, fused=has_fused_kernel)]


def adagrad(
    named_parameters: NamedParameters,
    lr_multipliers: LrMultipliers = NO_LR_MULTIPLIERS,
    *,
    lr: float = 0.01,
    eps: float = 1e-10,
    weight_decay: float = 0.0,
) -> list[AnyOptimizer]:
    """Adagrad. After Duchi et al. 2011."""
    groups = _build_param_groups(named_parameters, lr_multipliers, lr, weight_decay)
    return [torch.optim.Adagrad(groups, lr=lr, eps=eps)]


def muon(
    named_parameters: NamedParameters,
    lr_multipliers: LrMultipliers = NO_LR_MULTIPLIERS,
    *,
    lr: float = 0.02,
    momentum: float = 0.95,
    weight_decay: float = 0.1,
    adamw_lr: float = 1e-3,
) -> list[AnyOptimizer]:
    """Muon (orthogonalized momentum) for matrices inside the layers, AdamW for other parameters. After Jordan 2024."""
    named_parameters = [(name, parameter) for name, parameter in named_parameters if parameter.requires_grad]
    if not hasattr(torch.optim, "Muon"):
        raise DeviceError(f"muon needs torch 2.9 or newer, found {torch.__version__}")
    layer_matrices: list[tuple[str, nn.Parameter]] = []
    other_parameters: list[tuple[str, nn.Parameter]] = []
    for name, parameter in named_parameters:
        # Embedding and output layers are matrices too, but Muon is not meant for them.
        is_layer_matrix = parameter.dim() == 2 and LAYER_PARAMETER_PATTERN.search(name)
        (layer_matrices if is_layer_matrix else other_parameters).append((name, parameter))
    adamw_optimizers = adamw(other_parameters, lr_multipliers, lr=adamw_lr) if other_parameters else []
    if not layer_matrices:  # the layers are frozen
        return adamw_optimizers
    groups = _build_param_groups(layer_matrices, lr_multipliers, lr, weight_decay)
    return [torch.optim.Muon(groups, lr=lr, momentum=momentum, weight_decay=weight_decay), *adamw_optimizers]


OPTIMIZERS: dict[str, Callable[..., list[AnyOptimizer]]] = {f.__name__: f for f in (adamw, adam, sgd, adagrad, muon)}


def constant(step: int, total_steps: int, *, warmup: int = 0) -> float:
    """Return 1, after a linear warmup."""
    return min(1.0, (step + 1) / (warmup + 1))


def cosine(step: int, total_steps: int, *, warmup: int = 0, final: float = 0.0) -> float:
    """Decay along half a cosine to the fraction `final`, after a linear warmup."""
    remaining = 0.5 * (1 + math.cos(math.pi * _compute_decay_progress(step, total_steps, warmup)))
    return constant(step, total_steps, warmup=warmup) * (final + (1 - final) * remaining)


def linear(step: int, total_steps: int, *, warmup: int = 0, final: float = 0.0) -> float:
    """Decay linearly to the fraction `final`, after a linear warmup."""
    return constant(step, total_steps, warmup=warmup) * (
        final + (1 - final) * (1 - _compute_decay_progress(step, total_steps, warmup))
    )


def _compute_decay_progress(step: int, total_steps: int, warmup: int) -> float:
    """Return the completed fraction of the steps after warmup."""
    return min(1.0, max(0, step - warmup) / max(1, total_steps - warmup))


LR_SCHEDULES: dict[str, Callable[..., float]] = {f.__name__: f for f in (constant, cosine, linear)}


class ScheduledOptimizer:
    """One model's optimizers, with gradient clipping and a learning-rate schedule."""

    def __init__(self, model: nn.Module, training: training.TrainingConfig, total_steps: int) -> None:
        multipliers = model.compute_lr_multipliers() if isinstance(model, EncoderClassifier) else NO_LR_MULTIPLIERS
        create = OPTIMIZERS[training.optimizer.kind]
        self.optimizers = create(model.named_parameters(), multipliers, **training.optimizer.options)
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.base_lrs = [[group["lr"] for group in optimizer.param_groups] for optimizer in self.optimizers]
        self.lr_schedule, self.lr_schedule_options = LR_SCHEDULES[training.schedule.kind], training.schedule.options
        self.max_grad_norm, self.total_steps = training.max_grad_norm, total_steps
        self._needs_bfloat16_check = training.optimizer.kind == "muon"

    def _check_bfloat16(self) -> None:
        """Raise DeviceError if bfloat16 crashes on this machine.

        The check runs at the first step because worker processes set the workaround before that.
        """
        if any(parameter.device.type == "cpu" for parameter in self.parameters) and not is_bfloat16_usable():
            raise DeviceError(
                "muon uses bfloat16, which crashes on this machine; set ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 before "
                "starting (`h2h doctor` reports details)"
            )
        self._needs_bfloat16_check = False

    def step(self, step: int) -> None:
        """Apply one optimizer step at this step's learning rate, then clear gradients."""
        if self._needs_bfloat16_check:
            self._check_bfloat16()
        if self.max_grad_norm is not None:
            nn.utils.clip_grad_norm_(self.parameters, self.max_grad_norm)
        factor = self.lr_schedule(step, self.total_steps, **self.lr_schedule_options)
        for optimizer, base_lrs in zip(self.optimizers, self.base_lrs, strict=True):
            for group, base_lr in zip(optimizer.param_groups, base_lrs, strict=True):
                group["lr"] = base_lr * factor
            optimizer.step()
            optimizer.zero_grad()

    def collect_state_tensors(self) -> dict[str, Tensor]:
        """Return the optimizer state as named tensors, for a checkpoint."""
        tensors = {}
        for optimizer_index, optimizer in enumerate(self.optimizers):
            for parameter_index, state in optimizer.state_dict()["state"].items():
                for name, value in state.items():
                    if value is not None:
                        tensors[f"{optimizer_index}.{parameter_index}.{name}"] = torch.as_tensor(value)
        return tensors

    def load_state_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Load the state that `collect_state_tensors` returned."""
        for optimizer_index, optimizer in enumerate(self.optimizers):
            state: dict[int, dict[str, Tensor]] = {}
            for key, value in tensors.items():
                saved_optimizer_index, parameter_index, name = key.split(".", 2)
                if int(saved_optimizer_index) == optimizer_index:
                    state.setdefault(int(parameter_index), {})[name] = value
            optimizer.load_state_dict({**optimizer.state_dict(), "state": state})


def check_training_options(training: dict[str, Any]) -> list[ValidationIssue]:
    """Return unknown names and options in the optimizer and schedule tables of an experiment file."""
    factories: dict[str, dict[str, Callable[..., Any]]] = {"optimizer": OPTIMIZERS, "schedule": LR_SCHEDULES}
    return [
        issue
        for key in factories
        if key in training
        for issue in validate_component(training[key], factories[key], key, f"training.{key}")
    ]
