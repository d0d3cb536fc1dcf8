"""The optimizer of a training run: runs the parts in the slots optimizer, schedule and average, and clips gradients."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType

import torch
from torch import Tensor, nn

from headtohead.config.tables.training import TrainingConfig
from headtohead.config.validation.component_options import get_component_options
from headtohead.nn.custom_model import CustomModel
from headtohead.nn.parts import registry
from headtohead.nn.parts.context import TrainingContext
from headtohead.nn.transformer import Transformer
from headtohead.pretrained.classifier import EncoderClassifier
from headtohead.training.parts.average import Average, TensorState
from headtohead.training.parts.optimizer import Optimizer, OptimizerPartAdapter, TrainableParameter
from headtohead.training.parts.schedule import Schedule

AVERAGE_PREFIX = "average"
"""Prefix of the tensors of the weight average in a checkpoint; those of optimizers start with their index."""


class ScheduledOptimizer:
    """One model's optimizers, with gradient clipping, a learning-rate schedule and a weight average."""

    def __init__(self, model: nn.Module, settings: TrainingConfig, total_steps: int) -> None:
        """Build the parts in the slots optimizer, schedule and average."""
        lr = float(settings.optimizer.options.get("lr", get_default_lr(settings.optimizer.kind)))
        trainable_parameters = list_trainable_parameters(model, lr)
        self.optimizer_part: Optimizer = registry.build_part("optimizer", settings.optimizer, trainable_parameters)
        self.lr_schedule: Schedule = registry.build_part("schedule", settings.schedule)
        self.weight_average: Average | None = None
        if settings.average is not None:
            self.weight_average = registry.build_part("average", settings.average)
        self.optimizers = self.optimizer_part.build()
        self.parameters = [trainable.parameter for trainable in trainable_parameters]
        self.base_lrs = [[group["lr"] for group in optimizer.param_groups] for optimizer in self.optimizers]
        self.max_grad_norm, self.total_steps = settings.max_grad_norm, total_steps
        self._average_states: list[TensorState] = [{} for _ in self.parameters]
        self._is_device_checked = False

    def needs_hessian(self, step: int) -> bool:
        """Return whether the optimizer needs the diagonal of the Hessian at this step."""
        return self.optimizer_part.needs_hessian(TrainingContext(step, self.total_steps))

    def step(self, step: int, hessian: Mapping[nn.Parameter, Tensor] = MappingProxyType({})) -> None:
        """Apply one optimizer step at the learning rate of this step, then clear the gradients.

        `hessian` maps parameters to the diagonal of the Hessian, if `needs_hessian`.
        """
        if not self._is_device_checked:
            self.optimizer_part.check_device()
            self._is_device_checked = True
        if self.max_grad_norm is not None:
            nn.utils.clip_grad_norm_(self.parameters, self.max_grad_norm)
        context = TrainingContext(step, self.total_steps)
        lr_factor = self.lr_schedule.get_factor(context)
        for optimizer, base_lrs in zip(self.optimizers, self.base_lrs, strict=True):
            for group, base_lr in zip(optimizer.param_groups, base_lrs, strict=True):
                group["lr"] = base_lr * lr_factor
            if isinstance(optimizer, OptimizerPartAdapter):
                optimizer.context, optimizer.hessian = context, hessian
            optimizer.step()
            optimizer.zero_grad()
        if self.weight_average is not None:
            with torch.no_grad():
                for parameter, state in zip(self.parameters, self._average_states, strict=True):
                    self.weight_average.update(parameter.detach(), state, context)

    @torch.no_grad()
    def compute_evaluation_weights(self, step: int) -> Mapping[Tensor, Tensor]:
        """Return the weights to evaluate and to keep after `step` steps, of parameters whose current weights differ."""
        evaluation_weights: dict[Tensor, Tensor] = {}
        for optimizer in self.optimizers:
            if isinstance(optimizer, OptimizerPartAdapter):
                evaluation_weights |= optimizer.compute_evaluation_weights()
        if self.weight_average is not None:
            context = TrainingContext(step, self.total_steps)
            for parameter, state in zip(self.parameters, self._average_states, strict=True):
                evaluation_weights[parameter] = self.weight_average.compute(parameter.detach(), state, context)
        return evaluation_weights

    @contextmanager
    def use_evaluation_weights(self, step: int) -> Iterator[None]:
        """Give the model the weights to evaluate after `step` steps inside the context; restore its own afterwards."""
        evaluation_weights = self.compute_evaluation_weights(step)
        training_weights = {parameter: parameter.detach().clone() for parameter in evaluation_weights}
        _copy_weights(evaluation_weights)
        try:
            yield
        finally:
            _copy_weights(training_weights)

    def keep_evaluation_weights(self, step: int) -> None:
        """Give the model the weights to evaluate after `step` steps for good, at the end of training."""
        _copy_weights(self.compute_evaluation_weights(step))

    def collect_state_tensors(self) -> dict[str, Tensor]:
        """Return the optimizer state as named tensors, for a checkpoint."""
        tensors = {}
        for optimizer_index, optimizer in enumerate(self.optimizers):
            for parameter_index, state in optimizer.state_dict()["state"].items():
                for name, value in state.items():
                    if value is not None:
                        tensors[f"{optimizer_index}.{parameter_index}.{name}"] = torch.as_tensor(value)
        for parameter_index, state in enumerate(self._average_states):
            for name, value in state.items():
                tensors[f"{AVERAGE_PREFIX}.{parameter_index}.{name}"] = value
        return tensors

    def load_state_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Load the state that `collect_state_tensors` returned."""
        states_by_prefix: dict[str, dict[int, TensorState]] = {}
        for key, value in tensors.items():
            prefix, parameter_index, name = key.split(".", 2)
            states_by_prefix.setdefault(prefix, {}).setdefault(int(parameter_index), {})[name] = value
        for optimizer_index, optimizer in enumerate(self.optimizers):
            state = states_by_prefix.get(str(optimizer_index), {})
            optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
        average_states = states_by_prefix.get(AVERAGE_PREFIX, {})
        self._average_states = [
            {name: value.to(parameter.device) for name, value in average_states.get(index, {}).items()}
            for index, parameter in enumerate(self.parameters)
        ]


def get_default_lr(kind: str) -> float:
    """Return the default learning rate of an optimizer part, or 1 if it has none."""
    lr_option = get_component_options(registry.get_part_class("optimizer", kind)).get("lr")
    return 1.0 if lr_option is None or lr_option.default is lr_option.empty else float(lr_option.default)


def list_trainable_parameters(model: nn.Module, lr: float = 1.0) -> list[TrainableParameter]:
    """Return the parameters that a scheduled optimizer updates, with names, multipliers of lr and weight decay.

    A custom network's `parameter_groups` is called with `lr`.
    """
    multipliers = model.compute_lr_multipliers() if isinstance(model, EncoderClassifier | Transformer) else {}
    groups = (model.list_parameter_groups(lr) if isinstance(model, CustomModel) else None) or []
    group_by_id = {id(parameter): group for group in groups for parameter in group["params"]}
    return [
        TrainableParameter(
            name,
            parameter,
            group_by_id.get(id(parameter), {}).get("lr", lr) / lr if groups else multipliers.get(name, 1.0),
            group_by_id.get(id(parameter), {}).get("weight_decay"),
        )
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    ]


@torch.no_grad()
def _copy_weights(weights: Mapping[Tensor, Tensor]) -> None:
    """Copy new weights into parameters, given as a mapping from parameter to weight."""
    for parameter, weight in weights.items():
        parameter.copy_(weight)
