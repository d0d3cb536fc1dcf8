"""Small models built around one part, for the conformance suite."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from headtohead.audit.model_copy import perturb_parameters
from headtohead.audit.probe import ModelProbe, find_blocked_attention_length
from headtohead.audit.tolerance import PART_TOLERANCES
from headtohead.config import model as config_model
from headtohead.config.tasks import Target
from headtohead.model_factory import build_model
from headtohead.nn.torch_rng import fork_seeded_rng
from headtohead.nn.transformer import Transformer

VOCAB_SIZE, NUM_CLASSES, SHORT_LENGTH = 23, 3, 8
SMALL_MODEL_SETTINGS: Mapping[str, Any] = {
    "width": 32,
    "heads": 4,
    "layers": 2,
    "context": 24,
    "position": "learned",
    "feedforward": {"kind": "mlp", "hidden": 24},
    "classifier_hidden": 12,
}


@dataclass(frozen=True)
class PartFixture:
    """The configuration of a small decoder or encoder built around one part, and probes for such models."""

    config: config_model.TransformerConfig
    is_encoder: bool = False
    include_short_length: bool = True
    """whether models with windows are checked on short texts as well"""

    @property
    def num_classes(self) -> int | None:
        return NUM_CLASSES if self.is_encoder else None

    def build_model(self, *, seed: int = 0, dtype: torch.dtype = torch.float64) -> Transformer:
        """Return a model in evaluation mode.

        All parameters are perturbed, because zero initialization hides violations.
        """
        model = build_model(self.config, VOCAB_SIZE, self.num_classes, seed=seed)
        assert isinstance(model, Transformer)
        model = model.to(dtype).eval()
        with torch.no_grad(), fork_seeded_rng(seed, "conformance", "perturbation"):
            perturb_parameters(model)
        return model

    def build_probe(
        self, length: int = SHORT_LENGTH, *, seed: int = 0, dtype: torch.dtype = torch.float64
    ) -> ModelProbe:
        """Return a strict probe for the fixture's model, in the given precision and with the tolerances for parts."""
        return ModelProbe(
            self.build_model(seed=seed, dtype=dtype),
            target=Target.CLASS if self.is_encoder else Target.NEXT_TOKEN,
            vocab_size=VOCAB_SIZE,
            context=self.config.context,
            num_classes=self.num_classes,
            length=length,
            dtypes=(dtype,),
            tolerances=PART_TOLERANCES,
            is_strict=True,
            perturb_if_insensitive=False,
        )

    @cached_property
    def lengths(self) -> tuple[int, ...]:
        """Return a short length, and a length at which windowed attention uses the blocked implementation."""
        blocked = find_blocked_attention_length(self.build_model())
        if not blocked:
            return (SHORT_LENGTH,)
        return (SHORT_LENGTH, blocked) if self.include_short_length else (blocked,)

    @cached_property
    def probes(self) -> list[ModelProbe]:
        """Return a float64 probe for each length."""
        return [self.build_probe(length) for length in self.lengths]

    @cached_property
    def float32_probes(self) -> list[ModelProbe]:
        return [self.build_probe(length, dtype=torch.float32) for length in self.lengths]


def build_fixture(
    model_settings: Mapping[str, Any], *, is_encoder: bool = False, include_short_length: bool = True
) -> PartFixture:
    """Return a fixture with these settings, whose context is long enough for its texts."""
    config = config_model.TransformerConfig.model_validate({**SMALL_MODEL_SETTINGS, **model_settings})
    fixture = PartFixture(config, is_encoder, include_short_length)
    context = max(config.context, *fixture.lengths)
    return PartFixture(config.model_copy(update={"context": context}), is_encoder, include_short_length)
