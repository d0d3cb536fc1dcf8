"""My idea: a feed-forward layer with a squared ReLU."""

from torch import nn
from torch.nn import functional as F

from headtohead.parts import FeedForward, register_part


@register_part("feedforward", "relu-squared")
class ReluSquared(FeedForward):
    """One hidden layer of `factor` x width with relu(x) ** 2. After So et al. 2021, arXiv:2109.08668."""

    def __init__(self, sizes, *, factor: int = 4):
        super().__init__(sizes)
        self.up = nn.Linear(sizes.width, factor * sizes.width)
        self.down = nn.Linear(factor * sizes.width, sizes.width)

    def forward(self, x, context):  # batch x length x width
        return self.down(F.relu(self.up(x)) ** 2)
