"""Several residual streams. After Zhu et al. 2024, arXiv:2409.19606 (dynamic form), with one connection per layer."""

import torch
from torch import nn
from torch.nn import functional as F

from headtohead.parts import Stack, register_part


@register_part("stack", "hyper-connections")
class HyperConnections(Stack):
    """Each layer reads a mix of `streams` residual streams; the streams are mixed and its change is added to each."""

    def __init__(self, sizes, *, streams: int = 4):
        super().__init__(sizes)
        # Layer i reads stream i alone at first. If all streams started equal, they would stay equal.
        self.read = nn.Parameter(torch.eye(streams)[torch.arange(sizes.layers) % streams, :, None])
        self.write = nn.Parameter(torch.ones(sizes.layers, streams, 1))
        self.mix = nn.Parameter(torch.eye(streams).repeat(sizes.layers, 1, 1))
        self.dynamic = nn.Parameter(torch.zeros(sizes.layers, sizes.width, 2 + streams))
        self.scale = nn.Parameter(torch.full((sizes.layers, 2), 0.01))

    def forward(self, x, layers, context):
        streams = x[..., None, :].repeat_interleave(self.read.shape[1], dim=-2)
        for index, layer in enumerate(layers):
            change = (F.layer_norm(streams, x.shape[-1:]) @ self.dynamic[index]).tanh()
            mix_scale, write_scale = self.scale[index]
            read = self.read[index] + mix_scale * change[..., :1]
            write = self.write[index] + write_scale * change[..., 1:2]
            mix = self.mix[index] + mix_scale * change[..., 2:]
            x = (read * streams).sum(-2)
            streams = mix.transpose(-1, -2) @ streams + write * (layer(x, context) - x)[..., None, :]
        return streams.mean(-2)  # the paper's sum, up to a factor that the final norm removes
