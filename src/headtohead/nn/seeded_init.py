"""Initialize parameters from (seed, module name), so that modules shared by two variants start with equal weights."""

from collections import defaultdict
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn

from headtohead.nn.dispatch_mode import EagerDispatchMode
from headtohead.nn.parts.base import Part
from headtohead.nn.parts.init import Init, LayerRole
from headtohead.nn.parts.output import Output
from headtohead.nn.random_state import fork_seeded_rng


class WriteRecorder(EagerDispatchMode):
    """Records the in-place operations on each storage with their scalar arguments, such as `normal_(0, 0.02)`."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._writes: dict[int, list[str]] = defaultdict(list)
        self._storages: list[torch.UntypedStorage] = []  # kept alive, because addresses are the keys

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation and record which tensors it writes, while parameters are initialized."""
        if function._schema.is_mutable and args and isinstance(args[0], Tensor):
            self._storages.append(args[0].untyped_storage())
            scalar_arguments = [argument for argument in args[1:] if not isinstance(argument, Tensor)]
            self._writes[self._storages[-1]._cdata].append(f"{function}{scalar_arguments}")
        return function(*args, **(kwargs or {}))

    def get_writes(self, tensor: Tensor) -> list[str]:
        """Return the operations that wrote to this tensor or to a view of it, in order."""
        return self._writes.get(tensor.untyped_storage()._cdata, [])


def init_parameters(
    model: nn.Module, seed: int, constructor_writes: WriteRecorder | None = None, inits: Sequence[Init] = ()
) -> None:
    """Initialize all parameters of a model.

    `reset_parameters` of every module that has one is called with a seed derived from (seed, module name). Modules are
    reset after their submodules, so that a part may initialize its own layers. A parameter shared by several modules
    keeps the values written first.

    Args:
        model: The model to initialize.
        seed: Seed of the initial weights.
        constructor_writes: Writes that were recorded while the model was built. Values that a part set in its
            constructor are kept.
        inits: Parts of the slot `init`, applied at the end.
    """
    initialized_parameters: set[nn.Parameter] = set()
    roles = find_layer_roles(model) if inits else {}
    for name, module in sorted(model.named_modules(), key=lambda pair: -len(pair[0].split(".")) if pair[0] else 0):
        # `reset_parameters` is PyTorch's convention; nn.MultiheadAttention uses `_reset_parameters` instead.
        reset_parameters = getattr(module, "reset_parameters", None) or getattr(module, "_reset_parameters", None)
        if not callable(reset_parameters):
            continue
        own_parameters = set(module.parameters(recurse=False))
        kept_values = [(parameter, parameter.detach().clone()) for parameter in own_parameters & initialized_parameters]
        constructed_values = [
            (parameter, parameter.detach().clone()) for parameter in own_parameters - initialized_parameters
        ]
        reset_writes = WriteRecorder()
        with fork_seeded_rng(seed, "initial", name), torch.no_grad():
            with reset_writes:
                reset_parameters()
            if name in roles:
                for init in inits:
                    init.init_layer(module.weight, getattr(module, "bias", None), roles[name])
        if constructor_writes is not None and _is_torch_layer(module):
            kept_values += [
                (parameter, values)
                for parameter, values in constructed_values
                if _is_set_by_part(parameter, constructor_writes, reset_writes)
            ]
        with torch.no_grad():
            for parameter, values in kept_values:
                parameter.copy_(values)
        initialized_parameters |= own_parameters


def _is_torch_layer(module: nn.Module) -> bool:
    """Return whether a module is a layer of PyTorch, which initializes itself in its constructor."""
    return type(module).__module__.startswith("torch.nn.")


def _is_set_by_part(parameter: nn.Parameter, constructor_writes: WriteRecorder, reset_writes: WriteRecorder) -> bool:
    """Return whether the constructor of a part initialized a layer's parameter differently from the layer itself."""
    constructor_ops, reset_ops = constructor_writes.get_writes(parameter), reset_writes.get_writes(parameter)
    # Layers initialize themselves when they are built, so a parameter without a recorded write was replaced later.
    is_as_built = any(constructor_ops[-n:] == reset_ops[:n] for n in range(1, len(reset_ops) + 1))
    return bool(reset_ops) and not is_as_built


def find_layer_roles(model: nn.Module) -> dict[str, LayerRole]:
    """Return the roles of the layers that parts in the slot `init` may change, by module name."""
    roles: dict[str, LayerRole] = {}
    residual_layer_names = {
        f"{name}.{layer}".lstrip(".")
        for name, part in model.named_modules()
        if isinstance(part, Part)
        for layer in part.residual_layers
    }
    for name, module in model.named_modules():
        if isinstance(module, Part):
            if module.is_layer:
                roles[name] = "output" if isinstance(module, Output) else "embedding"
        elif _is_torch_layer(module) and isinstance(module, nn.Linear | nn.Embedding):
            top_level_name = name.split(".")[0]
            is_output = top_level_name in ("output", "classifier") and name == _find_last_linear(model, top_level_name)
            role: LayerRole = "residual" if name in residual_layer_names else "output" if is_output else "hidden"
            roles[name] = "embedding" if isinstance(module, nn.Embedding) else role
    return roles


def _find_last_linear(model: nn.Module, top_level_name: str) -> str:
    """Return the name of the last linear layer in a head of the model, which is initialized in the role `output`."""
    linear_names: list[str] = [
        name
        for name, module in model.named_modules()
        if name.split(".")[0] == top_level_name and isinstance(module, nn.Linear)
    ]
    return linear_names[-1]


def list_differently_initialized_tensors(model: nn.Module) -> list[str]:
    """Return the names of the tensors that a part declares to initialize differently (`Part.starts_differently`).

    They are not compared between variants that should start from equal weights.
    """
    patterns = [
        f"{name}.{pattern}".lstrip(".")
        for name, part in model.named_modules()
        if isinstance(part, Part)
        for pattern in part.starts_differently
    ]
    return [name for name in model.state_dict() if any(fnmatchcase(name, pattern) for pattern in patterns)]
