"""Run the model audits of `h2h audit` on one model: of a run, pretrained, or an untrained network of the user."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headtohead.audit import model_audit
from headtohead.audit.result import CheckResult
from headtohead.config.tables import model as config_model
from headtohead.config.tasks import Target
from headtohead.config.toml import parse_toml_value
from headtohead.errors import RequestError
from headtohead.model_factory import build_model
from headtohead.pretrained.loading import LoadedPretrained
from headtohead.saved_models.open_model import open_model

MAX_PRETRAINED_CONTEXT = 128
"""input length in tokens; pretrained models read thousands"""


def audit_target(
    target: str,
    *,
    vocab_size: int = 100,
    context: int = 32,
    num_classes: int | None = None,
    options: Sequence[str] = (),
) -> list[CheckResult]:
    """Audit a run folder, a pretrained model, or an untrained network given as `file.py:Name`.

    `vocab_size`, `context`, `num_classes` and `options` (each "name=value") are only used to build a network from a
    file. A network without `num_classes` is audited as a language model.
    """
    if ".py:" in target:
        raw_config = {"module": target, "context": context, "options": _parse_options(options)}
        model = build_model(config_model.CustomModelConfig.model_validate(raw_config), vocab_size, num_classes)
        prediction_target = Target.NEXT_TOKEN if num_classes is None else Target.CLASS
        return model_audit.audit_model(
            model, target=prediction_target, vocab_size=vocab_size, context=context, num_classes=num_classes
        )
    bundle = open_model(target)
    if bundle.target is Target.NONE:
        raise RequestError(f"{bundle.name}: cannot audit a model without a head")
    is_pretrained = isinstance(bundle, LoadedPretrained) or bundle.imported_from is not None
    return model_audit.audit_model(
        bundle.model,
        target=bundle.target,
        vocab_size=bundle.tokenizer.vocab_size,
        context=min(bundle.model.context, MAX_PRETRAINED_CONTEXT) if is_pretrained else bundle.model.context,
        num_classes=len(bundle.label_names) or None,
        pad_id=bundle.tokenizer.pad_id,
    )


def _parse_options(options: Sequence[str]) -> dict[str, Any]:
    """Parse the audited network's options, given as "name=value", into a dict.

    Values are parsed as TOML; anything that is not valid TOML is kept as a string.
    """
    parsed_options: dict[str, Any] = {}
    for option in options:
        name, separator, value = option.partition("=")
        if not separator:
            raise RequestError(f"--option {option}: has the form name=value, as in --option n_layer=2")
        parsed_options[name] = parse_toml_value(value, f"--option {name}")
    return parsed_options
