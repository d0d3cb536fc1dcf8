"""The collection of planted mistakes and of correct but unusual models, and how each is trained and audited.

`@planted(kind, description, reason)` and `@correct(description)` register a network under its description.
`tools/planted.py` writes the table in docs/audits.md from the collection.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from headtohead.audit.model_audit import audit_model
from headtohead.audit.model_copy import ModuleAdapter
from headtohead.audit.rescoring import ModelRescorer
from headtohead.audit.result import CheckResult
from headtohead.audit.scoring_audit import run_scoring_checks
from headtohead.config.tasks import Target
from headtohead.data.batches import IGNORE_INDEX, Batch
from headtohead.errors import ModelError
from headtohead.nn.random_state import fork_seeded_rng
from headtohead.training.task_objectives.evaluation_pass import run_evaluation_pass
from headtohead.training.task_objectives.language_modeling import LanguageModelObjective

VOCAB_SIZE = 40
CONTEXT = 48
PAD_ID = 0
FUTURE = "reads the future"
BATCH = "depends on other rows of the batch"
STATE = "depends on texts that were scored before"
NOT_FINITE = "has test losses that are not finite"

Network = type[nn.Module]


@dataclass(frozen=True)
class PlantedNetwork:
    """A network with a mistake, and the reason with which an audit must withhold the verdict."""

    network: Network
    kind: str
    reason: str
    is_padded: bool
    """whether the sequences are padded"""


PLANTED: dict[str, PlantedNetwork] = {}
CORRECT: dict[str, tuple[Network, bool]] = {}
"""networks by description, and whether the sequences are padded"""


def planted(kind: str, description: str, reason: str, *, is_padded: bool = False) -> Callable[[Network], Network]:
    """Register a network with a mistake under its description."""

    def register_network(network: Network) -> Network:
        assert description not in PLANTED, description
        PLANTED[description] = PlantedNetwork(network, kind, reason, is_padded)
        return network

    return register_network


def correct(description: str, *, is_padded: bool = False) -> Callable[[Network], Network]:
    """Register a correct network under its description."""

    def register_network(network: Network) -> Network:
        assert description not in CORRECT, description
        CORRECT[description] = network, is_padded
        return network

    return register_network


def shift_right(x: Tensor, num_positions: int = 1) -> Tensor:
    """Shift values (batch, length, ...) to the right, with zeros at the start."""
    return torch.cat((torch.zeros_like(x[:, :num_positions]), x[:, : x.shape[1] - num_positions]), dim=1)


def draw_batches(num_rows: int, seed: int, *, is_padded: bool, batch_size: int = 16) -> list[Batch]:
    """Return batches of rows in which each token depends on the preceding one."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(1, VOCAB_SIZE, (num_rows, 1), generator=generator)
    offsets = torch.tensor([1, 1, 2, 7, 11])[torch.randint(0, 5, (num_rows, CONTEXT), generator=generator)]
    for position in range(CONTEXT):
        ids = torch.cat((ids, 1 + (3 * ids[:, -1:] + offsets[:, position : position + 1]) % (VOCAB_SIZE - 1)), dim=1)
    lengths = torch.randint(CONTEXT // 2, CONTEXT + 1, (num_rows, 1), generator=generator)
    mask = torch.arange(CONTEXT + 1) <= (lengths if is_padded else CONTEXT)
    ids, labels = ids.masked_fill(~mask, PAD_ID), ids.masked_fill(~mask, IGNORE_INDEX)
    indices = torch.arange(num_rows)
    return [
        Batch(
            ids[rows, :-1],
            labels[rows, 1:],
            mask[rows, :-1] if is_padded else None,
            rows,
        )
        for rows in indices.split(batch_size)
    ]


def audit_network(
    network: Network, *, is_padded: bool = False, num_steps: int = 20, with_model_audits: bool = True
) -> list[CheckResult]:
    """Train the network for a few steps, score 64 rows, and audit the scores as in a trial.

    With `with_model_audits`, also run the model audits, which a trial runs for its first seed.
    """
    with fork_seeded_rng("planted"):
        model = ModuleAdapter(network(VOCAB_SIZE, CONTEXT), VOCAB_SIZE, None, CONTEXT)
    objective, device = LanguageModelObjective(), torch.device("cpu")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    for batch in draw_batches(16 * num_steps, seed=1, is_padded=is_padded):
        optimizer.zero_grad()
        objective.compute_loss(model, batch).backward()
        optimizer.step()
    batches = draw_batches(64, seed=2, is_padded=is_padded)
    evaluation = run_evaluation_pass(model, objective, batches, device)
    rescorer = ModelRescorer(
        model,
        objective,
        batches,
        target=Target.NEXT_TOKEN,
        device=device,
        recorded_losses=torch.as_tensor(evaluation.losses),
    )
    results = run_scoring_checks(rescorer, [evaluation])
    if not with_model_audits:
        return results
    try:
        return results + audit_model(
            model, target=Target.NEXT_TOKEN, vocab_size=VOCAB_SIZE, context=CONTEXT, pad_id=PAD_ID
        )
    except ModelError:  # as in a trial, the audits of the scores decide
        return results
