"""Small correct and deliberately broken models, and their audit results by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from torch import nn

from headtohead.audit.audited_model import AuditedModel
from headtohead.audit.model_audit import MODEL_CHECKS, audit_model
from headtohead.audit.result import CheckResult
from headtohead.config.tables import model as config_model
from headtohead.config.tasks import Target
from headtohead.model_factory import build_model
from headtohead.nn.transformer import Transformer

VOCAB = 23
CONTEXT = 12
CLASSES = 3
PAD = 0
SMALL: dict[str, Any] = {
    "width": 16,
    "heads": 2,
    "layers": 2,
    "context": CONTEXT,
    "feedforward": {"kind": "mlp", "hidden": 12},
    "classifier_hidden": 8,
}

BuildSmallModel = Callable[..., Transformer]
Audit = Callable[..., Mapping[str, CheckResult]]


@pytest.fixture
def build_small_model() -> BuildSmallModel:
    """Build a small model: build_small_model(position="rope") is a decoder, build_small_model(classes=3) an encoder."""

    def build(classes: int | None = None, seed: int = 0, **settings: Any) -> Transformer:
        model = build_model(
            config_model.TransformerConfig.model_validate({**SMALL, **settings}), VOCAB, classes, seed=seed
        )
        assert isinstance(model, Transformer)
        return model

    return build


class LazyAudits(Mapping[str, CheckResult]):
    """Audit results of a model by name, computed on first access."""

    def __init__(self, audited_model: AuditedModel) -> None:
        self.audited_model, self.results = audited_model, dict[str, CheckResult]()

    def __getitem__(self, name: str) -> CheckResult:
        if name not in self.results:
            self.results[name] = MODEL_CHECKS[name](self.audited_model)
        return self.results[name]

    def __iter__(self) -> Iterator[str]:
        return iter(MODEL_CHECKS)

    def __len__(self) -> int:
        return len(MODEL_CHECKS)


def build_audit_settings(classes: int | None) -> dict[str, Any]:
    target = Target.NEXT_TOKEN if classes is None else Target.CLASS
    return {"target": target, "num_classes": classes, "vocab_size": VOCAB, "context": CONTEXT, "pad_id": PAD}


@pytest.fixture
def audit(unchecked: None) -> Audit:
    """Audit a small model without run-time shape checks, which would take most of the time."""

    def run_audit(model: nn.Module, classes: int | None = None, **more: Any) -> Mapping[str, CheckResult]:
        return LazyAudits(AuditedModel(model, **{**build_audit_settings(classes), **more}))

    return run_audit


@pytest.fixture
def audit_all() -> Audit:
    """Audit a model through the public API, with shape checks on every call."""

    def run_audit(model: nn.Module, classes: int | None = None, **more: Any) -> Mapping[str, CheckResult]:
        return {result.name: result for result in audit_model(model, **{**build_audit_settings(classes), **more})}

    return run_audit
