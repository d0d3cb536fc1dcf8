"""Small models, good ones and ones that are broken on purpose, and their audits by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from torch import nn

from headtohead.audit.model_audit import MODEL_CHECKS, audit_model
from headtohead.audit.probe import ModelProbe
from headtohead.audit.result import CheckResult
from headtohead.config import model as config_model
from headtohead.config.tasks import Target
from headtohead.model_factory import build_model
from headtohead.nn.transformer import Transformer

VOCAB, CONTEXT, CLASSES, PAD = 23, 12, 3, 0
SMALL: dict[str, Any] = {
    "width": 16,
    "heads": 2,
    "layers": 2,
    "context": CONTEXT,
    "feedforward": {"kind": "mlp", "hidden": 12},
    "classifier_hidden": 8,
}

Make = Callable[..., Transformer]
Audit = Callable[..., Mapping[str, CheckResult]]


@pytest.fixture
def make() -> Make:
    """make(position="rope") is a small decoder, make(classes=3) a small encoder."""

    def made(classes: int | None = None, seed: int = 0, **settings: Any) -> Transformer:
        model = build_model(
            config_model.TransformerConfig.model_validate({**SMALL, **settings}), VOCAB, classes, seed=seed
        )
        assert isinstance(model, Transformer)
        return model

    return made


class Audits(Mapping[str, CheckResult]):
    """The findings about a model by name, each made when it is asked for."""

    def __init__(self, probe: ModelProbe) -> None:
        self.probe, self.made = probe, dict[str, CheckResult]()

    def __getitem__(self, name: str) -> CheckResult:
        if name not in self.made:
            self.made[name] = MODEL_CHECKS[name](self.probe)
        return self.made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(MODEL_CHECKS)

    def __len__(self) -> int:
        return len(MODEL_CHECKS)


def settings_of(classes: int | None) -> dict[str, Any]:
    target = Target.NEXT_TOKEN if classes is None else Target.CLASS
    return {"target": target, "num_classes": classes, "vocab_size": VOCAB, "context": CONTEXT, "pad_id": PAD}


@pytest.fixture
def audit(unchecked: None) -> Audit:
    """Audits of a small model. Without checks of shapes, which would take most of the time."""

    def audited(model: nn.Module, classes: int | None = None, **more: Any) -> Mapping[str, CheckResult]:
        return Audits(ModelProbe(model, **{**settings_of(classes), **more}))

    return audited


@pytest.fixture
def audit_all() -> Audit:
    """The same from the door that everybody uses, with shapes checked at every call."""

    def audited(model: nn.Module, classes: int | None = None, **more: Any) -> Mapping[str, CheckResult]:
        return {f.name: f for f in audit_model(model, **{**settings_of(classes), **more})}

    return audited
