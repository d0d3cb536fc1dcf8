"""Block: in which order a layer attends, feeds forward, normalises and adds.

A block owns the norms and the dropout; attending and feeding are handed to it as functions of the stream.
"""

from collections.abc import Callable

from jaxtyping import Float
from torch import Tensor, nn

from headtohead.nn.parts.base import Part, Sizes
from headtohead.nn.parts.registry import part

Stream = Float[Tensor, "batch length width"]
Step = Callable[[Tensor], Tensor]


class Block(Part):
    """The contract. `norm` makes a norm; `feeds` says whether there is a feed-forward at all."""

    def __init__(self, sizes: Sizes, norm: Callable[[], nn.Module], feeds: bool) -> None:
        super().__init__(sizes)
        self.drop = nn.Dropout(sizes.dropout)

    def forward(self, x: Stream, attend: Step, feed: Step | None) -> Stream:
        raise NotImplementedError


class TwoNorms(Block):
    """What pre and post share: a norm for each branch."""

    def __init__(self, sizes: Sizes, norm: Callable[[], nn.Module], feeds: bool) -> None:
        super().__init__(sizes, norm, feeds)
        self.attention_norm = norm()
        self.feed_norm = norm() if feeds else nn.Identity()


@part("block", "pre")
class Pre(TwoNorms):
    """Normalise, compute, add. After Xiong et al. 2020, arXiv:2002.04745."""

    def forward(self, x: Stream, attend: Step, feed: Step | None) -> Stream:
        x = x + self.drop(attend(self.attention_norm(x)))
        return x if feed is None else x + self.drop(feed(self.feed_norm(x)))


@part("block", "post")
class Post(TwoNorms):
    """Compute, add, normalise, as in the first transformer. After Vaswani et al. 2017, arXiv:1706.03762."""

    def forward(self, x: Stream, attend: Step, feed: Step | None) -> Stream:
        x = self.attention_norm(x + self.drop(attend(x)))
        return x if feed is None else self.feed_norm(x + self.drop(feed(x)))


@part("block", "parallel")
class Parallel(Block):
    """Attention and feed-forward side by side from one norm. After Wang and Komatsuzaki 2021 (GPT-J)."""

    def __init__(self, sizes: Sizes, norm: Callable[[], nn.Module], feeds: bool) -> None:
        super().__init__(sizes, norm, feeds)
        self.norm = norm()

    def forward(self, x: Stream, attend: Step, feed: Step | None) -> Stream:
        seen: Tensor = self.norm(x)
        both: Tensor = self.drop(attend(seen) if feed is None else attend(seen) + feed(seen))
        return x + both
