"""Attention over the outputs of earlier layers. After arXiv:2603.15031 (2026), with one residual per layer."""

import torch
from torch import nn
from torch.nn import functional as F

from headtohead.parts import Stack, register_part


@register_part("stack", "attention-residuals")
class AttentionResiduals(Stack):
    """Each layer, and the final norm, reads a weighted mean of the embeddings and of what earlier layers added."""

    def __init__(self, sizes):
        super().__init__(sizes)
        self.queries = nn.Parameter(torch.zeros(sizes.layers + 1, sizes.width))

    def forward(self, x, layers, context):
        outputs = [x]
        for layer, query in zip(layers, self.queries, strict=False):
            x = self.read(outputs, query)
            outputs.append(layer(x, context) - x)
        return self.read(outputs, self.queries[-1])

    def read(self, outputs, query):
        stacked = torch.stack(outputs)  # output x batch x length x width
        weights = (F.rms_norm(stacked, query.shape) @ query).softmax(0)
        return (weights[..., None] * stacked).sum(0)
