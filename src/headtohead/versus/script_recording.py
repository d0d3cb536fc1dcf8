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

from headtohead.errors import RequestError
from headtohead.json_files import append_jsonl
from headtohead.versus.file_schemas import RECORD_FILE, RECORDED_EXAMPLES_FILE

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
    output_folder = os.environ.get("H2H_OUT")
    return Recording(Path(output_folder) if output_folder else None)


class Recording:
    """Writes evidence about a run, such as hashes of its batches, to the run's output folder."""

    def __init__(self, output_folder: Path | None) -> None:
        self._path = output_folder / RECORD_FILE if output_folder else None

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
                digest.update(name.encode() + _array_to_bytes(tensor))
            self._append_event({"event": "start", "digest": digest.hexdigest()})

    def batch(self, input_ids: ArrayLike) -> None:
        """Record a hash of a training batch."""
        if self._path is not None:
            self._append_event({"event": "batch", "digest": hashlib.sha256(_array_to_bytes(input_ids)).hexdigest()})

    def log(self, step: int, **metrics: SupportsFloat) -> None:
        """Record metric values at a step."""
        if self._path is not None:
            values = {name: float(value) for name, value in metrics.items()}
            json_values = {name: value if math.isfinite(value) else None for name, value in values.items()}
            self._append_event({"event": "log", "step": int(step), "metrics": json_values})

    def examples(
        self, scores: ArrayLike, weights: ArrayLike | None = None, documents: Sequence[str] | None = None
    ) -> None:
        """Record the final score of each example: its mean loss or score, its weight and the document it belongs to."""
        if self._path is None:
            return
        score_list = [float(score) for score in scores]
        weight_list = [1.0] * len(score_list) if weights is None else [float(weight) for weight in weights]
        document_list = [""] * len(score_list) if documents is None else [str(document) for document in documents]
        if not len(score_list) == len(weight_list) == len(document_list):
            raise RequestError(
                f"{len(score_list)} scores, {len(weight_list)} weights and {len(document_list)} documents; every "
                "example needs one of each"
            )
        path = self._path.with_name(RECORDED_EXAMPLES_FILE)
        path.unlink(missing_ok=True)
        for index, (score, weight, document) in enumerate(zip(score_list, weight_list, document_list, strict=True)):
            line = {"example": str(index), "score": score, "weight": weight}
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
            self._append_event({"event": "audit", "result": result.to_dict()})
        return results

    def _append_event(self, event: dict[str, object]) -> None:
        assert self._path is not None
        append_jsonl(self._path, event)


def select_scalar_metrics(logs: Mapping[str, object]) -> dict[str, SupportsFloat]:
    """Return the numbers and single-element tensors in a training framework's logs, for `Recording.log`."""
    return {
        name: value
        for name, value in logs.items()
        if isinstance(value, SupportsFloat) and (not hasattr(value, "numel") or value.numel() == 1)
    }


def _array_to_bytes(array: ArrayLike) -> bytes:
    """Return the bytes of a recorded tensor or array that are hashed, with its shape and dtype."""
    import numpy as np

    if hasattr(array, "detach"):
        tensor = array.detach().cpu()
        array = tensor.float().numpy() if tensor.is_floating_point() else tensor.numpy()
    contiguous_array = np.ascontiguousarray(array)
    return repr((contiguous_array.shape, str(contiguous_array.dtype))).encode() + contiguous_array.tobytes()
