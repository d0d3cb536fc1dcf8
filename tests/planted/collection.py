"""The collection of planted mistakes and honest unusual models, and how a network of it is trained and audited.

`@planted(kind, description, reason)` and `@honest(description)` enter a network under its description.
`tools/planted.py` writes the table in docs/audits.md from the collection.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from headtohead.audit.model_audit import audit_model
from headtohead.audit.model_copy import ModuleAdapter
from headtohead.audit.result import CheckResult
from headtohead.audit.scoring_audit import run_scoring_checks
from headtohead.audit.scoring_probe import ScoringProbe
from headtohead.config.tasks import Target
from headtohead.data.batches import IGNORE_INDEX, Batch
from headtohead.errors import ModelError
from headtohead.nn.torch_rng import fork_seeded_rng
from headtohead.training.objectives import LanguageModelObjective, evaluate

VOCAB_SIZE, CONTEXT, PAD_ID = 40, 48, 0
FUTURE = "reads the future"
BATCH = "depends on other rows of the batch"
STATE = "depends on texts that were scored before"
NOT_FINITE = "has test losses that are not finite"

Network = type[nn.Module]


@dataclass(frozen=True)
class PlantedNetwork:
    """A network with a mistake, and the words that the audits must use for it."""

    network: Network
    kind: str
    reason: str
    is_padded: bool


PLANTED: dict[str, PlantedNetwork] = {}
HONEST: dict[str, tuple[Network, bool]] = {}
"""description: network, and whether the texts are padded"""


def planted(kind: str, description: str, reason: str, *, is_padded: bool = False) -> Callable[[Network], Network]:
    """Enter a network with a mistake under its description."""

    def enter(network: Network) -> Network:
        assert description not in PLANTED, description
        PLANTED[description] = PlantedNetwork(network, kind, reason, is_padded)
        return network

    return enter


def honest(description: str, *, is_padded: bool = False) -> Callable[[Network], Network]:
    """Enter an honest network under its description."""

    def enter(network: Network) -> Network:
        assert description not in HONEST, description
        HONEST[description] = network, is_padded
        return network

    return enter


def shift_right(x: Tensor, steps: int = 1) -> Tensor:
    """Return the values of the positions before, and zeros at the start."""
    return torch.cat((torch.zeros_like(x[:, :steps]), x[:, : x.shape[1] - steps]), dim=1)


def draw_batches(num_rows: int, seed: int, *, is_padded: bool, batch_size: int = 16) -> list[Batch]:
    """Return rows in which each token depends on the one before, in batches."""
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
    network: Network, *, is_padded: bool = False, steps: int = 20, with_model: bool = True
) -> list[CheckResult]:
    """Train the network for a few steps, score 64 rows, and audit the scores as a trial does.

    `with_model` adds the audits of the model, which a trial runs on its first seed.
    """
    with fork_seeded_rng("planted"):
        model = ModuleAdapter(network(VOCAB_SIZE, CONTEXT), VOCAB_SIZE, None, CONTEXT)
    objective, device = LanguageModelObjective(), torch.device("cpu")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    for batch in draw_batches(16 * steps, seed=1, is_padded=is_padded):
        optimizer.zero_grad()
        objective.loss(model, batch).backward()
        optimizer.step()
    batches = draw_batches(64, seed=2, is_padded=is_padded)
    evaluation = evaluate(model, objective, batches, device)
    probe = ScoringProbe(
        model,
        objective,
        batches,
        target=Target.NEXT_TOKEN,
        device=device,
        recorded=torch.as_tensor(evaluation.losses),
    )
    results = run_scoring_checks(probe, [evaluation])
    if not with_model:
        return results
    try:
        return results + audit_model(
            model, target=Target.NEXT_TOKEN, vocab_size=VOCAB_SIZE, context=CONTEXT, pad_id=PAD_ID
        )
    except ModelError:  # as in a trial, the audits of the scores decide
        return results
