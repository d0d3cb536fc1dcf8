"""Current token: a decoder's logits at a position should depend on the token at that position.

They do not if the input is shifted twice, by the network and by the labels: the model then predicts two tokens ahead.
"""

from __future__ import annotations

import torch

from headtohead.audit.probe import ModelProbe
from headtohead.audit.result import CheckResult, build_not_applicable

CURRENT_TOKEN_CHECK_NAME = "current-token"


def check_current_token(probe: ModelProbe) -> CheckResult:
    """Check that the logits at the last position change if the last token is replaced."""
    if not probe.is_causal:
        return build_not_applicable(CURRENT_TOKEN_CHECK_NAME, "the model is an encoder, which reads the whole text")
    replaced = probe.replace_tokens_from(probe.input_ids, probe.length - 1)
    change = (probe.compute_logits(replaced) - probe.compute_logits(probe.input_ids))[:, -1].abs().amax()
    procedure = f"last token of {len(probe.input_ids)} texts replaced; {probe.setup_description}"
    observation = f"the logits that follow it change by up to {float(change):.2g}"
    if not torch.isfinite(change) or float(change) > 0:
        interpretation = "Predictions use the token before the one to predict."
        return CheckResult(CURRENT_TOKEN_CHECK_NAME, True, procedure, observation, interpretation)
    return CheckResult(
        CURRENT_TOKEN_CHECK_NAME,
        False,
        procedure,
        "the logits that follow it do not change",
        "The model does not see the token right before the one to predict. Labels are already shifted by one position: "
        "do not shift the input as well.",
        failure_reason="ignores the last token",
    )
