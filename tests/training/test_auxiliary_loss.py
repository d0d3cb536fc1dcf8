"""A part adds a term to the training loss; scores do not contain it."""

import pytest
import torch

from headtohead.config.base import ComponentConfig
from headtohead.config.model import TransformerConfig
from headtohead.data.batches import Batch
from headtohead.nn.parts import register_part
from headtohead.nn.parts.attention import MultiHeadAttention
from headtohead.nn.transformer import Transformer
from headtohead.training.objectives import LanguageModelObjective


@register_part("attention", "small-queries")
class SmallQueries(MultiHeadAttention):
    """Multi-head attention with a penalty on the norm of its queries."""

    def __init__(self, *arguments, weight: float = 0.01) -> None:
        super().__init__(*arguments)
        self.weight = weight

    def forward(self, x, attention_context, layer_index):
        queries, _, _ = self.projection(x)
        attention_context.add_loss("query norm", self.weight * queries.square().mean())
        return super().forward(x, attention_context, layer_index)


def build(weight: float) -> Transformer:
    torch.manual_seed(0)
    attention = ComponentConfig(kind="small-queries", weight=weight)
    return Transformer(TransformerConfig(width=16, layers=2, context=8, attention=attention), vocab_size=11)


def test_a_part_adds_to_the_training_loss_only() -> None:
    ids = torch.arange(18).view(2, 9) % 11
    batch, objective = Batch(ids[:, :-1], ids[:, 1:]), LanguageModelObjective()
    plain, penalized = build(0.0), build(1.0)
    loss, larger_loss = objective.loss(plain, batch), objective.loss(penalized, batch)
    assert larger_loss > loss
    (larger_loss - loss.detach()).backward()
    assert all(layer.attention.projection.query.weight.grad.any() for layer in penalized.layers)
    scores, other_scores = objective.score(plain.eval(), batch), objective.score(penalized.eval(), batch)
    assert torch.equal(scores["losses"], other_scores["losses"])
    assert float(loss.detach()) == pytest.approx(float(scores["losses"].sum() / 16), rel=1e-5)
