"""Base class of the modes that observe every operation of a model."""

from torch.utils._python_dispatch import TorchDispatchMode


class EagerDispatchMode(TorchDispatchMode):
    """A `TorchDispatchMode` that does not import torch's compiler, which takes longer than a second."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False, so that `__torch_dispatch__` is not wrapped by the compiler. Older versions never wrap it."""
        return False
