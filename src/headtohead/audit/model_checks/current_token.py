"""Current token: a decoder's logits at a position should depend on the token at that position.

They do not if the input is shifted twice, by the network and by the labels: the model then predicts two tokens ahead.
"""

from __future__ import annotations

import torch

from headtohead.audit.audited_model import AuditedModel
from headtohead.audit.result import CheckResult, build_inapplicable_result

CURRENT_TOKEN_CHECK_NAME = "current-token"


def check_current_token(audited_model: AuditedModel) -> CheckResult:
    """Check that the logits at the last position change if the last token is replaced."""
    if not audited_model.is_causal:
        return build_inapplicable_result(
            CURRENT_TOKEN_CHECK_NAME, "the model is an encoder, which reads the whole sequence"
        )
    replaced_ids = audited_model.replace_tokens_from(audited_model.input_ids, audited_model.input_length - 1)
    logits = audited_model.compute_logits(audited_model.input_ids)
    change = (audited_model.compute_logits(replaced_ids) - logits)[:, -1].abs().amax()
    procedure = f"last token of {len(audited_model.input_ids)} sequences replaced; {audited_model.setup_description}"
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
