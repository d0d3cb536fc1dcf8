"""Small models built around one part, for the conformance suite."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from headtohead.audit.audited_model import AuditedModel, choose_blocked_attention_input_length
from headtohead.audit.model_copy import perturb_parameters
from headtohead.audit.tolerance import PART_TOLERANCES
from headtohead.config.tables import model as config_model
from headtohead.config.tasks import Target
from headtohead.model_factory import build_model
from headtohead.nn.random_state import fork_seeded_rng
from headtohead.nn.transformer import Transformer

VOCAB_SIZE = 23
NUM_CLASSES = 3
SHORT_INPUT_LENGTH = 8
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
    """The configuration of a small decoder or encoder that contains the part to be checked, and passes over it."""

    config: config_model.TransformerConfig
    is_encoder: bool = False
    include_short_length: bool = True
    """whether models with windows are checked on short inputs as well"""

    @property
    def num_classes(self) -> int | None:
        """Return the number of classes of an encoder, which classifies; None for a decoder."""
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

    def build_audited_model(
        self, length: int = SHORT_INPUT_LENGTH, *, seed: int = 0, dtype: torch.dtype = torch.float64
    ) -> AuditedModel:
        """Return strict passes over the fixture's model, in the given precision and with the tolerances for parts."""
        return AuditedModel(
            self.build_model(seed=seed, dtype=dtype),
            target=Target.CLASS if self.is_encoder else Target.NEXT_TOKEN,
            vocab_size=VOCAB_SIZE,
            context=self.config.context,
            num_classes=self.num_classes,
            input_length=length,
            dtypes=(dtype,),
            tolerances=PART_TOLERANCES,
            is_strict=True,
            perturb_if_insensitive=False,
        )

    @cached_property
    def input_lengths(self) -> tuple[int, ...]:
        """Return a short length, and a length at which windowed attention uses the blocked implementation."""
        blocked_length = choose_blocked_attention_input_length(self.build_model())
        if not blocked_length:
            return (SHORT_INPUT_LENGTH,)
        return (SHORT_INPUT_LENGTH, blocked_length) if self.include_short_length else (blocked_length,)

    @cached_property
    def audited_models(self) -> list[AuditedModel]:
        """Return passes in float64 for each input length."""
        return [self.build_audited_model(length) for length in self.input_lengths]

    @cached_property
    def float32_audited_models(self) -> list[AuditedModel]:
        """Return passes in float32 for each input length."""
        return [self.build_audited_model(length, dtype=torch.float32) for length in self.input_lengths]


def build_fixture(
    model_settings: Mapping[str, Any], *, is_encoder: bool = False, include_short_length: bool = True
) -> PartFixture:
    """Return a fixture with `model_settings` and a context long enough for its inputs."""
    config = config_model.TransformerConfig.model_validate({**SMALL_MODEL_SETTINGS, **model_settings})
    fixture = PartFixture(config, is_encoder, include_short_length)
    context = max(config.context, *fixture.input_lengths)
    return PartFixture(config.model_copy(update={"context": context}), is_encoder, include_short_length)
