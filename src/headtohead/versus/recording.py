"""Optional calls in a training script that provide a comparison with stronger evidence.

    run = headtohead.record()
    run.start(model)                          # hash of the initial weights
    run.batch(input_ids)                      # hash of each batch
    run.log(step, val_loss=loss)              # metric values
    run.examples(losses, weights, documents)  # final scores per example
    run.audit(model, vocab_size=..., context=...)  # checks of the trained model, such as causality

Outside of `h2h versus` these calls do nothing.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, SupportsFloat

from headtohead.atomic_io import append_jsonl
from headtohead.errors import RequestError
from headtohead.versus.records import RECORD_FILE

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor, nn

    from headtohead.audit.result import CheckResult

    ArrayLike = Tensor | np.ndarray | Sequence[float]


class HasStateDict(Protocol):
    """A model whose weights can be listed by name, such as `torch.nn.Module`."""

    def state_dict(self) -> Mapping[str, Tensor]: ...


def record() -> Recording:
    """Return this run's recorder. It writes nothing unless the script was started by `h2h versus`."""
    out = os.environ.get("H2H_OUT")
    return Recording(Path(out) if out else None)


class Recording:
    """Writes evidence about a run to its output folder."""

    def __init__(self, out: Path | None) -> None:
        self._path = out / RECORD_FILE if out else None

    @property
    def is_active(self) -> bool:
        """Whether `h2h versus` started the script."""
        return self._path is not None

    def start(self, model: HasStateDict | Mapping[str, ArrayLike]) -> None:
        """Record a hash of a model's initial weights, which may also be passed as a mapping from names to weights."""
        if self._path is not None:
            digest = hashlib.sha256()
            weights = model if isinstance(model, Mapping) else model.state_dict()
            for name, tensor in sorted(weights.items()):
                digest.update(name.encode() + _to_bytes(tensor))
            self._append({"event": "start", "digest": digest.hexdigest()})

    def batch(self, input_ids: ArrayLike) -> None:
        """Record a hash of a training batch."""
        if self._path is not None:
            self._append({"event": "batch", "digest": hashlib.sha256(_to_bytes(input_ids)).hexdigest()})

    def log(self, step: int, **metrics: SupportsFloat) -> None:
        """Record metric values at a step."""
        if self._path is not None:
            values = {name: float(value) for name, value in metrics.items()}
            finite = {name: value if math.isfinite(value) else None for name, value in values.items()}
            self._append({"event": "log", "step": int(step), "metrics": finite})

    def examples(
        self, scores: ArrayLike, weights: ArrayLike | None = None, documents: Sequence[str] | None = None
    ) -> None:
        """Record the final score of each example: its mean loss or score, its weight and the document it belongs to."""
        if self._path is None:
            return
        columns = [[float(value) for value in column] for column in (scores, scores if weights is None else weights)]
        names = [str(name) for name in documents] if documents is not None else [""] * len(columns[0])
        if not len(columns[0]) == len(columns[1]) == len(names):
            raise RequestError(
                f"{len(columns[0])} scores, {len(columns[1])} weights and {len(names)} documents; one of each is needed"
            )
        path = self._path.with_name(f"{RECORD_FILE}.examples.jsonl")
        path.unlink(missing_ok=True)
        for index, (score, weight, document) in enumerate(zip(*columns, names, strict=True)):
            line = {"example": str(index), "score": score, "weight": 1.0 if weights is None else weight}
            append_jsonl(path, line | ({"document": document} if document else {}))

    def audit(
        self,
        model: nn.Module,
        *,
        vocab_size: int,
        context: int,
        num_classes: int | None = None,
        pad_id: int | None = None,
    ) -> list[CheckResult]:
        """Audit a copy of the trained model with the same checks as in experiments; record and return the results.

        The model maps token ids (batch, length) to logits. It predicts the next token, or one of `num_classes`. A
        failed check that invalidates scores, such as causality, withholds the verdict.
        """
        if self._path is None:
            return []
        from headtohead.audit.model_audit import audit_model
        from headtohead.config.tasks import Target

        results = audit_model(
            model,
            target=Target.NEXT_TOKEN if num_classes is None else Target.CLASS,
            vocab_size=vocab_size,
            context=context,
            num_classes=num_classes,
            pad_id=pad_id,
        )
        for result in results:
            self._append({"event": "audit", "result": result.to_dict()})
        return results

    def _append(self, event: dict[str, object]) -> None:
        assert self._path is not None
        append_jsonl(self._path, event)


def select_numbers(values: Mapping[str, object]) -> dict[str, SupportsFloat]:
    """Return the values that are numbers or single-element tensors."""
    return {
        name: value
        for name, value in values.items()
        if isinstance(value, SupportsFloat) and (not hasattr(value, "numel") or value.numel() == 1)
    }


def _to_bytes(array: ArrayLike) -> bytes:
    """Return a recorded tensor or array as bytes, including its shape."""
    import numpy as np

    if hasattr(array, "detach"):
        tensor = array.detach().cpu()
        array = tensor.float().numpy() if tensor.is_floating_point() else tensor.numpy()
    values = np.ascontiguousarray(array)
    return repr((values.shape, str(values.dtype))).encode() + values.tobytes()
