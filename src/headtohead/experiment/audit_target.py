"""Auditing a model by itself: a run folder, or a network of the user's own that was never trained here."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headtohead.audit import model_audit
from headtohead.audit.result import CheckResult
from headtohead.config import model as config_model
from headtohead.config.tasks import Target
from headtohead.errors import RequestError
from headtohead.experiment import model_io
from headtohead.model_factory import build_model


def audit_target(
    target: str,
    *,
    vocab_size: int = 100,
    context: int = 32,
    num_classes: int | None = None,
    options: Sequence[str] = (),
) -> list[CheckResult]:
    """Audit a run folder, or `file.py:Name` built with these sizes and options (name=value)."""
    if ".py:" in target:
        raw = {"module": target, "context": context, "options": _parse_options(options)}
        model = build_model(config_model.CustomModelConfig.model_validate(raw), vocab_size, num_classes)
        target_ = Target.NEXT_TOKEN if num_classes is None else Target.CLASS
        return model_audit.audit_model(
            model, target=target_, vocab_size=vocab_size, context=context, num_classes=num_classes
        )
    loaded = model_io.load(Path(target))
    return model_audit.audit_model(
        loaded.model,
        target=loaded.target,
        vocab_size=loaded.tokenizer.vocab_size,
        context=loaded.model.context,
        num_classes=len(loaded.label_names) or None,
        pad_id=loaded.tokenizer.pad_id,
    )


def _parse_options(given: Sequence[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for one in given:
        name, equals, text = one.partition("=")
        if not equals:
            raise RequestError(f"--option {one}: has the form name=value, as in --option n_layer=2")
        try:
            found[name] = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            found[name] = text
    return found
