"""Predict several tokens ahead. After Gloeckle et al. 2024, arXiv:2404.19737, with linear heads."""

from torch import nn

from headtohead.parts import Objective, compute_cross_entropy, register_part


@register_part("objective", "multi-token")
class MultiTokenPrediction(Objective):
    """Also predict the `ahead` tokens after the next one: objective = ["cross-entropy", "multi-token"]."""

    def __init__(self, sizes, *, ahead: int = 1):
        super().__init__(sizes)
        self.heads = nn.ModuleList(nn.Linear(sizes.width, sizes.width) for _ in range(ahead))

    def forward(self, model, output, labels, context):
        loss = 0.0
        for distance, head in enumerate(self.heads, start=1):
            hidden = head(output.last_hidden_state[:, :-distance])
            loss = loss + compute_cross_entropy(model.compute_logits(hidden, context), labels[:, distance:])
        return loss
