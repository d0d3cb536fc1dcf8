"""Initialise parameters from (seed, module name), so that modules shared by two variants start with equal weights."""

import hashlib
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from headtohead.errors import ModelError
from headtohead.nn.torch_rng import fork_seeded_rng


class WriteRecorder(TorchDispatchMode):
    """Records the in-place operations on each storage with their scalar arguments, such as normal_(0, 0.02)."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._writes: dict[int, list[str]] = defaultdict(list)
        self._storages: list[torch.UntypedStorage] = []  # kept alive, because addresses are the keys

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function._schema.is_mutable and args and isinstance(args[0], Tensor):
            self._storages.append(args[0].untyped_storage())
            scalars = [argument for argument in args[1:] if not isinstance(argument, Tensor)]
            self._writes[self._storages[-1]._cdata].append(f"{function}{scalars}")
        return function(*args, **(kwargs or {}))

    def get_writes(self, tensor: Tensor) -> list[str]:
        """Return the operations that wrote to this tensor or to a view of it, in order."""
        return self._writes.get(tensor.untyped_storage()._cdata, [])


def init_parameters(model: nn.Module, seed: int, construction: WriteRecorder | None = None) -> None:
    """Call every module's `reset_parameters`, if it has one, seeded from (seed, module name).

    A module is reset after its submodules, so that a part's `reset_parameters` may initialise its own layers. A
    parameter shared by several modules keeps the values that the first one wrote. If the writes during construction
    were recorded, raise ModelError when a constructor initialised a parameter differently, because `reset_parameters`
    would silently replace its values.
    """
    initialized: set[nn.Parameter] = set()
    recorder = WriteRecorder()
    for name, module in sorted(model.named_modules(), key=lambda pair: -len(pair[0].split(".")) if pair[0] else 0):
        # `reset_parameters` is PyTorch's convention; nn.MultiheadAttention uses `_reset_parameters` instead.
        reset = getattr(module, "reset_parameters", None) or getattr(module, "_reset_parameters", None)
        if not callable(reset):
            continue
        own_parameters = set(module.parameters(recurse=False))
        shared = [(parameter, parameter.detach().clone()) for parameter in own_parameters & initialized]
        with fork_seeded_rng(seed, "initial", name), recorder:
            reset()
        with torch.no_grad():
            for parameter, values in shared:
                parameter.copy_(values)
        initialized |= own_parameters
    if construction is not None:
        _check_constructor_values_kept(model, construction, recorder)


def _check_constructor_values_kept(model: nn.Module, construction: WriteRecorder, resets: WriteRecorder) -> None:
    """Raise ModelError if constructors wrote values to parameters that `reset_parameters` does not write."""
    lost = []
    for prefix, module in model.named_modules():
        is_layer = type(module).__module__.startswith("torch.nn.")
        for name, parameter in module.named_parameters(prefix, recurse=False):
            constructed, reset = construction.get_writes(parameter), resets.get_writes(parameter)
            # torch layers initialise themselves, so a parameter without a recorded write was replaced later.
            is_replaced = not any(constructed[-n:] == reset[:n] for n in range(1, len(reset) + 1))
            if reset and is_replaced and (constructed or is_layer):
                lost.append(name)
    if lost:
        more = f" and {len(lost) - 3} more tensors" if len(lost) > 3 else ""
        raise ModelError(
            f"{', '.join(lost[:3])}{more}: initialised in a constructor, but reset_parameters() of each module runs "
            "afterwards and initialises it in another way. Override reset_parameters(self) of the part and initialise "
            "it there; it is called after that of the layers inside the part"
        )


def compute_tensor_hashes(model: nn.Module) -> dict[str, str]:
    """Return "shape:hash" of every tensor by name, to show which tensors start equal in two variants.

    A tensor with several names is listed under the first.
    """
    hashes, addresses = {}, set[int]()
    for name, tensor in model.state_dict().items():
        if tensor.data_ptr() not in addresses:
            hashes[name] = f"{'x'.join(map(str, tensor.shape))}:{hash_tensors([tensor])}"
        addresses.update([tensor.data_ptr()] if tensor.numel() else [])
    return hashes


def hash_tensors(tensors: Iterable[Tensor]) -> str:
    """Return one hash over the values of all initial tensors."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()[:16]
