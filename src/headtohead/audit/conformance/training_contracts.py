"""The contract of each training slot, checked by calling the methods of a part or training a small model with it."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from headtohead.audit.conformance.assertions import CheckFailedError, assert_tensor
from headtohead.audit.conformance.fixtures import VOCAB_SIZE, build_fixture
from headtohead.audit.conformance.resume_checks import ResumableTraining, build_random_training_batch
from headtohead.config.base import ComponentConfig
from headtohead.config.tables.training import TrainingConfig
from headtohead.data.order import Order, OrderContext, TrainingItems
from headtohead.errors import DataError
from headtohead.nn.parts import registry
from headtohead.nn.parts.base import Component
from headtohead.nn.parts.context import ForwardContext, TrainingContext
from headtohead.nn.protocol import ModelOutput
from headtohead.training.parts.average import Average
from headtohead.training.parts.objective import Objective
from headtohead.training.parts.optimizer import Optimizer
from headtohead.training.parts.schedule import Schedule

TRAINING_BASE_CLASSES: dict[str, type[Component]] = {
    "objective": Objective,
    "optimizer": Optimizer,
    "schedule": Schedule,
    "average": Average,
    "order": Order,
}


def check_training_contract(slot: str, component: ComponentConfig) -> str:
    """Check that a part of training fulfills the contract of its slot; return what was observed."""
    part_class = registry.get_part_class(slot, component.kind)
    base_class = TRAINING_BASE_CLASSES[slot]
    if not issubclass(part_class, base_class):
        raise CheckFailedError(
            f"{part_class.__name__} is registered for slot {slot} but does not inherit {base_class.__name__}"
        )
    return _CONTRACT_CHECKS[slot](component)


def build_training_config(slot: str, component: ComponentConfig) -> TrainingConfig:
    """Return the settings of a training that uses the part."""
    if slot == "order":  # batches are a pure function of (seed, step), so there is no state
        return TrainingConfig()
    return TrainingConfig.model_validate({slot: component.model_dump()})


def _check_schedule_contract(component: ComponentConfig) -> str:
    """Check that a schedule returns finite factors that depend on the step only."""
    schedule: Schedule = registry.build_part("schedule", component)
    for total_steps in (1, 10, 1000):
        contexts = [TrainingContext(step, total_steps) for step in range(total_steps + 1)]
        factors = [schedule.get_factor(context) for context in contexts]
        if invalid := [factor for factor in factors if not 0 <= factor < math.inf]:
            raise CheckFailedError(f"get_factor returns {invalid[0]} within {total_steps} steps")
        if factors != [schedule.get_factor(context) for context in reversed(contexts)][::-1]:
            raise CheckFailedError("get_factor depends on the order of the calls: a resumed run would differ")
    return "finite factors that depend on the step only"


def _check_optimizer_contract(component: ComponentConfig) -> str:
    """Check that an optimizer updates every parameter, and none at a learning rate of 0."""
    training = ResumableTraining.start(build_fixture({}), build_training_config("optimizer", component))
    before = {name: tensor.clone() for name, tensor in training.model.state_dict().items()}
    training.train(0, 3)
    after = training.model.state_dict()
    if invalid := [name for name, tensor in after.items() if not bool(tensor.isfinite().all())]:
        raise CheckFailedError(f"not finite after 3 steps: {', '.join(invalid[:3])}")
    if unchanged := [name for name in before if torch.equal(before[name], after[name])]:
        raise CheckFailedError(f"unchanged after 3 steps: {', '.join(unchanged[:3])}")
    training.optimizer.base_lrs = [[0.0 for _ in group] for group in training.optimizer.base_lrs]
    before = {name: tensor.clone() for name, tensor in training.model.state_dict().items()}
    training.train(3, 4)
    after = training.model.state_dict()
    if changed := [name for name in before if not torch.equal(before[name], after[name])]:
        raise CheckFailedError(
            f"changed at a learning rate of 0: {', '.join(changed[:3])}; multiply the update by context.lr, which "
            "contains the schedule"
        )
    return "every parameter is updated, by nothing if the learning rate is 0"


def _check_average_contract(component: ComponentConfig) -> str:
    """Check that the average of two alternating weights lies between them."""
    average: Average = registry.build_part("average", component)
    first_weight, second_weight = torch.randn(5, 3), torch.randn(5, 3)
    state: dict[str, torch.Tensor] = {}
    for step in range(3000):
        average.update(first_weight if step % 2 else second_weight, state, TrainingContext(step, 3000))
    mean = average.compute(first_weight, state, TrainingContext(3000, 3000))
    assert_tensor(mean, (5, 3), first_weight.dtype, "average")
    low, high = torch.minimum(first_weight, second_weight), torch.maximum(first_weight, second_weight)
    if bool(((mean < low - 1e-5) | (mean > high + 1e-5)).any()):
        raise CheckFailedError("the average of two alternating weights does not lie between them")
    return "averages lie between the averaged weights"


def _check_objective_contract(component: ComponentConfig) -> str:
    """Check that an objective returns a scalar loss with a gradient, which ignores positions without a label."""
    model = ResumableTraining.start(build_fixture({}), TrainingConfig()).model
    part: Objective = registry.build_part("objective", component, model.sizes)
    batch = build_random_training_batch(0, None)
    labels = batch.labels.clone()
    labels[0, :4] = -100
    context = ForwardContext.create(batch.input_ids, is_training=True)
    output = model(batch.input_ids)
    loss = part(model, output, labels, context)
    assert_tensor(loss, (), output.logits.dtype, "loss")
    loss.backward()
    if all(parameter.grad is None for parameter in model.parameters()):
        raise CheckFailedError("the loss has no gradient with respect to the model")
    changed_logits = output.logits.detach().clone()
    changed_logits[0, :4] += torch.randn(4, VOCAB_SIZE)
    changed_output = ModelOutput(changed_logits, last_hidden_state=output.last_hidden_state)
    if not torch.allclose(part(model, changed_output, labels, context), loss, atol=1e-5):
        raise CheckFailedError("logits at labels of -100, where nothing is predicted, change the loss")
    return "a finite loss of the predicted positions"


def _check_order_contract(component: ComponentConfig) -> str:
    """Check that an order gives valid batches of rows or of a stream of tokens."""
    order: Order = registry.build_part("order", component)
    checked = [name for name, items in _build_training_items().items() if _check_order_of_items(order, name, items)]
    if not checked:
        raise CheckFailedError("neither rows nor a stream of tokens can be ordered")
    return f"batches of {' and '.join(checked)} are determined by seed and step"


def _build_training_items() -> dict[str, TrainingItems]:
    """Return rows and a stream of tokens that an order part may have to order."""
    row_starts = torch.tensor([0, 5, 7, 12, 20, 24, 30, 36])
    documents = torch.tensor([0, 0, 1, 1, 2, 3, 4])
    rows = TrainingItems(7, 2, 8, 36, row_starts, documents, row_starts.diff())
    return {"rows": rows, "a stream": TrainingItems(8, 2, 4, 36, row_starts, documents, None)}


def _check_order_of_items(order: Order, name: str, items: TrainingItems) -> bool:
    """Check an order on rows or on a stream; return False if it refuses them."""
    try:
        order.check(items)
    except DataError:
        return False
    for step in range(3):
        context = OrderContext(0, 100, step, partial(_seed_generator, step))
        uses_epochs = order.has_epochs or not items.is_stream
        draw: Callable[..., Any] = order.order_epoch if uses_epochs else order.draw_batch
        indices = draw(items, context)
        if not torch.equal(indices, draw(items, context)):
            raise CheckFailedError(f"{name}: equal seeds give different orders; draw from context.seed_generator")
        limit = items.num_tokens if indices.dim() == 2 else items.num_windows if items.is_stream else items.count
        if not bool(((indices >= 0) & (indices < limit)).all()):
            raise CheckFailedError(f"{name}: an index is outside 0 .. {limit - 1}")
        if not items.is_stream and sorted(indices.tolist()) != list(range(items.count)):
            raise CheckFailedError("an epoch does not contain every row once")
        length = order.get_length(items, TrainingContext(step, 100))
        if not 1 <= length <= items.context:
            raise CheckFailedError(f"get_length returns {length}, and the context is {items.context}")
    return True


def _seed_generator(seed: int, purpose: str) -> torch.Generator:
    """Return the random generator that an order part gets in its context."""
    return torch.Generator().manual_seed(seed)


_CONTRACT_CHECKS: dict[str, Callable[[ComponentConfig], str]] = {
    "objective": _check_objective_contract,
    "optimizer": _check_optimizer_contract,
    "schedule": _check_schedule_contract,
    "average": _check_average_contract,
    "order": _check_order_contract,
}
