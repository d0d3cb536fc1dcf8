"""Mistakes in ordinary model code that the scoring audits detected without changes to the audits."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .collection import BATCH, FUTURE, PAD_ID, STATE, planted
from .networks import Decoder

ORDINARY = "ordinary model code"


@planted(ORDINARY, "generation cache left on while scoring", STATE)
class KeptCache(Decoder):
    cached: Tensor | None = None

    def attend(self, x: Tensor, attention_mask: Tensor | None) -> Tensor:
        if self.training:
            return super().attend(x, attention_mask)
        query, key, value = self.project(x).chunk(3, -1)
        past = self.cached
        self.cached = torch.stack((key, value)).detach()[:, :, -4:]
        scores = self.mask(query @ key.transpose(1, 2))
        if past is not None and past.shape[1] == len(x):
            scores, value = torch.cat((query @ past[0].transpose(1, 2), scores), -1), torch.cat((past[1], value), 1)
        return scores.softmax(-1) @ value


@planted(ORDINARY, "layer norm over positions and features", FUTURE)
class NormOverText(Decoder):
    def transform(self, x: Tensor, input_ids: Tensor) -> Tensor:
        return F.layer_norm(x, x.shape[1:])


@planted(ORDINARY, "instance norm over positions", FUTURE)
class InstanceNorm(Decoder):
    def build(self) -> None:
        self.norm = nn.InstanceNorm1d(self.width, affine=True)

    def transform(self, x: Tensor, input_ids: Tensor) -> Tensor:
        return self.norm(x.transpose(1, 2)).transpose(1, 2)


@planted(ORDINARY, "text treated as an image by a 2D convolution", FUTURE)
class ImageConvolution(Decoder):
    def build(self) -> None:
        self.conv = nn.Conv2d(1, 1, 3, padding=1)

    def transform(self, x: Tensor, input_ids: Tensor) -> Tensor:
        return x + self.conv(x[:, None])[:, 0]


@planted(ORDINARY, "padding mask inverted, all keys at the same large negative score", FUTURE, is_padded=True)
class InvertedMask(Decoder):
    def attend(self, x: Tensor, attention_mask: Tensor | None) -> Tensor:
        query, key, value = self.project(x).chunk(3, -1)
        scores = (query @ key.transpose(1, 2)).masked_fill(~self.visible(query @ key.transpose(1, 2)), -1e9)
        if attention_mask is not None:
            scores = scores.masked_fill(attention_mask[:, None], -1e9)
        return scores.softmax(-1) @ value


@planted(ORDINARY, "rows sorted by length and not put back", BATCH, is_padded=True)
class SortedRows(Decoder):
    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Any:
        return super().forward(input_ids[(input_ids != PAD_ID).sum(1).argsort()], attention_mask)


@planted(ORDINARY, "second prediction head averaged at the wrong position", FUTURE)
class SecondHead(Decoder):
    def build(self) -> None:
        self.second = nn.Linear(self.vocab_size, self.vocab_size)

    def finish(self, logits: Tensor, input_ids: Tensor) -> Tensor:
        other = self.second(logits)
        return 0.5 * logits + 0.5 * torch.cat((other[:, 1:], other[:, -1:]), 1)


@planted(ORDINARY, "encoder that reads the text to predict", FUTURE)
class EncoderOfTheText(Decoder):
    def build(self) -> None:
        self.encoder = nn.GRU(self.width, self.width, batch_first=True)

    def transform(self, x: Tensor, input_ids: Tensor) -> Tensor:
        return x + self.encoder(self.embedding(input_ids))[1][0][:, None]


@planted(ORDINARY, "latent variable of the whole text, drawn while scoring", FUTURE)
class LatentVariable(Decoder):
    def build(self) -> None:
        self.mean, self.expand = nn.Linear(self.width, 4), nn.Linear(4, self.width)

    def transform(self, x: Tensor, input_ids: Tensor) -> Tensor:
        latent = self.mean(x.mean(1))
        return x + self.expand(latent + 0.1 * torch.randn_like(latent))[:, None]


@planted(ORDINARY, "additive mask of -10", FUTURE)
class SmallAdditiveMask(Decoder):
    def mask(self, scores: Tensor) -> Tensor:
        return scores + torch.full(scores.shape[-2:], -10.0).triu(1).to(scores)


@planted(ORDINARY, "scaled_dot_product_attention with a mask of ones", FUTURE)
class MaskOfOnes(Decoder):
    def attend(self, x: Tensor, attention_mask: Tensor | None) -> Tensor:
        query, key, value = self.project(x).chunk(3, -1)
        return F.scaled_dot_product_attention(query, key, value, torch.ones(x.shape[1], x.shape[1]).bool())


@planted(ORDINARY, "results kept by the shape of the input", BATCH)
class KeptByShape(Decoder):
    def build(self) -> None:
        self.results: dict[tuple[int, ...], Tensor] = {}

    def transform(self, x: Tensor, input_ids: Tensor) -> Tensor:
        return x if self.training else self.results.setdefault(tuple(x.shape), x)


@planted(ORDINARY, "predictions restricted to the words of the text", FUTURE)
class WordsOfTheText(Decoder):
    def finish(self, logits: Tensor, input_ids: Tensor) -> Tensor:
        is_present = F.one_hot(input_ids, self.vocab_size).amax(1).bool()
        return logits.masked_fill(~is_present[:, None], -20.0)


@planted(ORDINARY, "predictions restricted to the words of the batch", BATCH)
class WordsOfTheBatch(Decoder):
    def finish(self, logits: Tensor, input_ids: Tensor) -> Tensor:
        counts = torch.bincount(input_ids.flatten(), minlength=self.vocab_size).to(logits.dtype)
        return logits + counts.log1p()


@planted(ORDINARY, "batch norm left in training mode", BATCH)
class TrainingBatchNorm(Decoder):
    def build(self) -> None:
        self.norm = nn.BatchNorm1d(self.width)

    def transform(self, x: Tensor, input_ids: Tensor) -> Tensor:
        self.norm.train()
        return self.norm(x.transpose(1, 2)).transpose(1, 2)


@planted(ORDINARY, "activations clipped at a quantile of the text", FUTURE)
class ClippedAtQuantile(Decoder):
    def transform(self, x: Tensor, input_ids: Tensor) -> Tensor:
        return torch.minimum(x, x.flatten(1).quantile(0.9, 1)[:, None, None])


@planted(ORDINARY, "low-pass filter over the text", FUTURE)
class LowPass(Decoder):
    def transform(self, x: Tensor, input_ids: Tensor) -> Tensor:
        spectrum = torch.fft.rfft(x, dim=1)
        is_low = torch.arange(spectrum.shape[1]) < spectrum.shape[1] // 2
        return torch.fft.irfft(spectrum * is_low[:, None], x.shape[1], dim=1)


@planted(ORDINARY, "end of the text predicted from its length", FUTURE, is_padded=True)
class RemainingLength(Decoder):
    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Any:
        logits = super().forward(input_ids, attention_mask).clone()
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        remaining = mask.sum(1)[:, None] - torch.arange(input_ids.shape[1])
        logits[..., 3] += 4.0 * (remaining == 1)
        return logits
