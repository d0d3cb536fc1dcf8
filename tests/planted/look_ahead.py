"""Networks that see the tokens to be predicted: through masks, mixing, normalization, routing and features."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .collection import FUTURE, planted, shift_right
from .networks import (
    Decoder,
    LeakAfterCommonWords,
    LeakAfterPosition40,
    LeakBehindBatchNorm,
    LeakWithInPlaceProduct,
    LeakWithoutBatchesOfOne,
    ShiftWithMaskedPadding,
    shift_left,
)

MASK = "attention masks"
MIX = "mixing of positions"
NORM = "normalization"
ROUTE = "routing"
FEATURE = "features of the whole text"
HIDDEN = "look-ahead that hides"

# ---- attention masks


@planted(MASK, "no causal mask", FUTURE)
class NoMask(Decoder):
    def mask(self, scores: Tensor) -> Tensor:
        return scores


@planted(MASK, "mask off by one", FUTURE)
class MaskOffByOne(Decoder):
    def visible(self, scores: Tensor) -> Tensor:
        return torch.ones(scores.shape[-2:], dtype=torch.bool).tril(1)


@planted(MASK, "mask transposed", FUTURE)
class MaskTransposed(Decoder):
    def visible(self, scores: Tensor) -> Tensor:
        return super().visible(scores).T


@planted(MASK, "mask added as 0 and 1 instead of minus infinity", FUTURE)
class MaskAdded(Decoder):
    def mask(self, scores: Tensor) -> Tensor:
        return scores + self.visible(scores).to(scores.dtype)


@planted(MASK, "scores multiplied by the mask, so that masked keys have score 0", FUTURE)
class MaskMultiplied(Decoder):
    def mask(self, scores: Tensor) -> Tensor:
        return scores * self.visible(scores)


@planted(MASK, "mask applied after the softmax", FUTURE)
class MaskAfterSoftmax(Decoder):
    def mask(self, scores: Tensor) -> Tensor:
        return scores

    def weigh(self, scores: Tensor) -> Tensor:
        return scores.softmax(-1) * self.visible(scores)


@planted(MASK, "masked scores set to -2 instead of minus infinity", FUTURE)
class WeakMask(Decoder):
    def mask(self, scores: Tensor) -> Tensor:
        return scores.masked_fill(~self.visible(scores), -2.0)


@planted(MASK, "softmax over queries instead of keys", FUTURE)
class SoftmaxOverQueries(Decoder):
    def weigh(self, scores: Tensor) -> Tensor:
        return scores.softmax(-2)


@planted(MASK, "one of two heads without a mask", FUTURE)
class UnmaskedHead(Decoder):
    def attend(self, x: Tensor, attention_mask: Tensor | None) -> Tensor:
        query, key, value = self.project(x).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
        scores = query @ key.transpose(-1, -2)
        masked = torch.stack((self.mask(scores[:, 0]), scores[:, 1]), 1)
        return (masked.softmax(-1) @ value).transpose(1, 2).flatten(2)


@planted(MASK, "second attention layer without a mask", FUTURE)
class UnmaskedSecondLayer(Decoder):
    def build(self) -> None:
        self.second = nn.MultiheadAttention(self.width, 2, batch_first=True)

    def transform(self, x: Tensor, input_ids: Tensor) -> Tensor:
        return x + self.second(x, x, x, need_weights=False)[0]


@planted(MASK, "nn.TransformerEncoderLayer without src_mask", FUTURE)
class EncoderLayer(Decoder):
    def build(self) -> None:
        self.layer = nn.TransformerEncoderLayer(self.width, 2, 32, 0.0, batch_first=True)

    def transform(self, x: Tensor, input_ids: Tensor) -> Tensor:
        out: Tensor = self.layer(x)
        return out


@planted(MASK, "padding mask given instead of the causal mask", FUTURE, is_padded=True)
class PaddingMaskOnly(Decoder):
    def attend(self, x: Tensor, attention_mask: Tensor | None) -> Tensor:
        if attention_mask is None:
            return super().attend(x, None)
        query, key, value = (part[:, None] for part in self.project(x).chunk(3, -1))
        return F.scaled_dot_product_attention(query, key, value, attention_mask[:, None, None])[:, 0]


@planted(MASK, "every token sees its whole block of 8", FUTURE)
class BlockVisible(Decoder):
    def visible(self, scores: Tensor) -> Tensor:
        blocks = torch.arange(scores.shape[-1]) // 8
        return blocks[:, None] >= blocks[None]


@planted(MASK, "window of 5 tokens to both sides", FUTURE)
class SymmetricWindow(Decoder):
    def visible(self, scores: Tensor) -> Tensor:
        return torch.ones(scores.shape[-2:], dtype=torch.bool).tril(5).triu(-5)


@planted(MASK, "first 6 tokens see each other", FUTURE)
class Prefix(Decoder):
    def visible(self, scores: Tensor) -> Tensor:
        visible = super().visible(scores).clone()
        visible[:6, :6] = True
        return visible


@planted(MASK, "last token always visible as a sink", FUTURE)
class LastTokenVisible(Decoder):
    def visible(self, scores: Tensor) -> Tensor:
        visible = super().visible(scores).clone()
        visible[:, -1] = True
        return visible


@planted(MASK, "mask of the context aligned to the end of a shorter text", FUTURE)
class MisalignedMask(Decoder):
    def visible(self, scores: Tensor) -> Tensor:
        full = torch.ones(self.context + 4, self.context + 4, dtype=torch.bool).tril()
        length = scores.shape[-1]
        return full[-length:, :length]


# ---- mixing of positions


@planted(MIX, "input shifted to the left", FUTURE)
class ShiftedInput(Decoder):
    def embed(self, input_ids: Tensor) -> Tensor:
        return super().embed(shift_left(input_ids))


@planted(MIX, "hidden states rolled by one position", FUTURE)
class Rolled(Decoder):
    def transform(self, x: Tensor, input_ids: Tensor) -> Tensor:
        return x + torch.roll(x, -1, 1)


@planted(MIX, "logits of the next position returned", FUTURE)
class ShiftedLogits(Decoder):
    def finish(self, logits: Tensor, input_ids: Tensor) -> Tensor:
        return torch.cat((logits[:, 1:], logits[:, -1:]), 1)


@planted(MIX, "bidirectional GRU", FUTURE)
class BidirectionalRecurrence(Decoder):
    def build(self) -> None:
        self.rnn = nn.GRU(self.width, self.width // 2, batch_first=True, bidirectional=True)

    def transform(self, x: Tensor, input_ids: Tensor) -> Tensor:
        return x + self.rnn(x)[0]


@planted(MIX, "convolution padded on both sides", FUTURE)
class SamePadding(Decoder):
    def build(self) -> None:
        self.conv = nn.Conv1d(self.width, self.width, 3, padding="same")

    def transform(self, x: Tensor, input_ids: Tensor) -> Tensor:
        return x + self.conv(x.transpose(1, 2)).transpose(1, 2)


@planted(MIX, "convolution by FFT without padding, which wraps around", FUTURE)
class CircularConvolution(Decoder):
    def build(self) -> None:
        self.kernel = nn.Parameter(torch.randn(self.context, self.width) * 0.2)

    def transform(self, x: Tensor, input_ids: Tensor) -> Tensor:
        length = x.shape[1]
        spectrum = torch.fft.rfft(x, dim=1) * torch.fft.rfft(self.kernel[:length], dim=0)
        return x + torch.fft.irfft(spectrum, length, dim=1)


@planted(MIX, "Fourier mixing over positions", FUTURE)
class FourierMixing(Decoder):
    def attend(self, x: Tensor, attention_mask: Tensor | None) -> Tensor:
        return torch.fft.fft2(x).real * 0.1


@planted(MIX, "linear layer over positions", FUTURE)
class PositionMixer(Decoder):
    def build(self) -> None:
        self.mixer = nn.Linear(self.context, self.context)

    def transform(self, x: Tensor, input_ids: Tensor) -> Tensor:
        length = x.shape[1]
        return x + x.transpose(1, 2).matmul(self.mixer.weight[:length, :length]).transpose(1, 2)


@planted(MIX, "average pooling and upsampling without a shift", FUTURE)
class Upsampled(Decoder):
    def transform(self, x: Tensor, input_ids: Tensor) -> Tensor:
        pooled = F.avg_pool1d(x.transpose(1, 2), 4, 4, ceil_mode=True)
        return x + pooled.repeat_interleave(4, -1)[..., : x.shape[1]].transpose(1, 2)


@planted(MIX, "sums of the tokens that follow", FUTURE)
class SuffixSums(Decoder):
    def transform(self, x: Tensor, input_ids: Tensor) -> Tensor:
        return x + 0.1 * x.flip(1).cumsum(1).flip(1)


@planted(MIX, "positions sorted by a score", FUTURE)
class SortedPositions(Decoder):
    def transform(self, x: Tensor, input_ids: Tensor) -> Tensor:
        return x + x.gather(1, x[..., :1].argsort(1).expand_as(x))


@planted(MIX, "smoothing of the logits over neighbors", FUTURE)
class SmoothedLogits(Decoder):
    def finish(self, logits: Tensor, input_ids: Tensor) -> Tensor:
        return 0.8 * logits + 0.1 * shift_right(logits) + 0.1 * shift_left(logits)


@planted(MIX, "recurrence that runs from the end of the text", FUTURE)
class BackwardsRecurrence(Decoder):
    def build(self) -> None:
        self.cell = nn.GRUCell(self.width, self.width)

    def transform(self, x: Tensor, input_ids: Tensor) -> Tensor:
        state, states = torch.zeros_like(x[:, 0]), []
        for position in reversed(range(x.shape[1])):
            state = self.cell(x[:, position], state)
            states.insert(0, state)
        return x + torch.stack(states, 1)


# ---- normalization


@planted(NORM, "layer norm over positions", FUTURE)
class NormOverPositions(Decoder):
    def transform(self, x: Tensor, input_ids: Tensor) -> Tensor:
        return (x - x.mean(1, keepdim=True)) / (x.std(1, keepdim=True) + 1e-5)


@planted(NORM, "group norm over channels and positions", FUTURE)
class GroupNormOverPositions(Decoder):
    def build(self) -> None:
        self.norm = nn.GroupNorm(2, self.width)

    def transform(self, x: Tensor, input_ids: Tensor) -> Tensor:
        return self.norm(x.transpose(1, 2)).transpose(1, 2)


@planted(NORM, "division by the largest value of the text", FUTURE)
class MaxNorm(Decoder):
    def transform(self, x: Tensor, input_ids: Tensor) -> Tensor:
        return x / x.abs().amax((1, 2), keepdim=True)


@planted(NORM, "dynamic quantization with one scale per text", FUTURE)
class QuantizedPerText(Decoder):
    def transform(self, x: Tensor, input_ids: Tensor) -> Tensor:
        scale = x.detach().abs().amax((1, 2), keepdim=True) / 7
        return x + ((x / scale).round() * scale - x).detach()


@planted(NORM, "softmax over positions as a gate", FUTURE)
class PositionGate(Decoder):
    def transform(self, x: Tensor, input_ids: Tensor) -> Tensor:
        return x * (1 + x.softmax(1) * x.shape[1])


# ---- routing


@planted(ROUTE, "experts choose their tokens among the whole text", FUTURE)
class ExpertChoice(Decoder):
    def build(self) -> None:
        self.router, self.expert = nn.Linear(self.width, 1), nn.Linear(self.width, self.width)

    def transform(self, x: Tensor, input_ids: Tensor) -> Tensor:
        scores = self.router(x)[..., 0]
        chosen = torch.zeros_like(scores).scatter(1, scores.topk(x.shape[1] // 4, 1).indices, 1.0)
        return x + chosen[..., None] * self.expert(x)


@planted(ROUTE, "capacity that later tokens take first", FUTURE)
class LateCapacity(Decoder):
    def build(self) -> None:
        self.router, self.expert = nn.Linear(self.width, 1), nn.Linear(self.width, self.width)

    def transform(self, x: Tensor, input_ids: Tensor) -> Tensor:
        wants = self.router(x)[..., 0] > 0
        rank = wants.flip(1).cumsum(1).flip(1)
        return x + (wants & (rank <= 10))[..., None] * self.expert(x)


@planted(ROUTE, "similar tokens merged over the whole text", FUTURE)
class TokenMerging(Decoder):
    def transform(self, x: Tensor, input_ids: Tensor) -> Tensor:
        similarity = F.normalize(x, dim=-1) @ F.normalize(x, dim=-1).transpose(1, 2)
        nearest = (similarity - 2 * torch.eye(x.shape[1])).argmax(-1)
        return 0.5 * x + 0.5 * x.gather(1, nearest[..., None].expand_as(x))


# ---- features of the whole text


@planted(FEATURE, "mean of the text added to every position", FUTURE)
class GlobalMean(Decoder):
    def transform(self, x: Tensor, input_ids: Tensor) -> Tensor:
        return x + x.mean(1, keepdim=True)


@planted(FEATURE, "maximum of the text added to every position", FUTURE)
class GlobalMax(Decoder):
    def transform(self, x: Tensor, input_ids: Tensor) -> Tensor:
        return x + x.amax(1, keepdim=True)


@planted(FEATURE, "classification token at the end, read by all positions", FUTURE)
class LastState(Decoder):
    def transform(self, x: Tensor, input_ids: Tensor) -> Tensor:
        return x + x[:, -1:]


@planted(FEATURE, "bag of words of the text as a bias of the logits", FUTURE)
class BagOfWords(Decoder):
    def finish(self, logits: Tensor, input_ids: Tensor) -> Tensor:
        return logits + 0.3 * F.one_hot(input_ids, self.vocab_size).sum(1, keepdim=True).log1p()


@planted(FEATURE, "number of distinct tokens of the text as a feature", FUTURE)
class DistinctTokens(Decoder):
    def embed(self, input_ids: Tensor) -> Tensor:
        distinct = F.one_hot(input_ids, self.vocab_size).amax(1).sum(-1)
        return super().embed(input_ids) + 0.3 * distinct[:, None, None]


@planted(FEATURE, "positions counted from the end of the text", FUTURE, is_padded=True)
class PositionsFromTheEnd(Decoder):
    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Any:
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask.long()
        x = self.embedding(input_ids) + self.position(mask.flip(1).cumsum(1).flip(1).clamp_max(self.context - 1))
        return self.head(x + self.attend(x, attention_mask))


@planted(FEATURE, "length of the text as a feature", FUTURE, is_padded=True)
class LengthFeature(Decoder):
    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Any:
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        x = self.embed(input_ids) + 0.1 * mask.sum(1)[:, None, None]
        return self.head(x + self.attend(x, attention_mask))


@planted(FEATURE, "bigram embedding of the token and the next one", FUTURE)
class NextBigram(Decoder):
    def build(self) -> None:
        self.bigrams = nn.Embedding(997, self.width)

    def embed(self, input_ids: Tensor) -> Tensor:
        return super().embed(input_ids) + self.bigrams((input_ids * 31 + shift_left(input_ids)) % 997)


@planted(FEATURE, "pointer that also copies from later tokens", FUTURE)
class PointerToLater(Decoder):
    def finish(self, logits: Tensor, input_ids: Tensor) -> Tensor:
        same = (input_ids[:, :, None] == input_ids[:, None, :]).to(logits.dtype)
        return logits + 0.5 * same @ F.one_hot(shift_left(input_ids), self.vocab_size).to(logits.dtype)


# ---- look-ahead that hides

planted(HIDDEN, "off-by-one shift, padding logit at the smallest float", FUTURE)(ShiftWithMaskedPadding)
planted(HIDDEN, "leak only after eight common words", FUTURE)(LeakAfterCommonWords)
planted(HIDDEN, "leak only after position 40 of a network with 3 million weights", FUTURE)(LeakAfterPosition40)
planted(HIDDEN, "leak behind a batch norm that rejects a batch of one row", FUTURE)(LeakBehindBatchNorm)
planted(HIDDEN, "leak in a network that multiplies in place", FUTURE)(LeakWithInPlaceProduct)
planted(HIDDEN, "leak in a network that accepts batches of several rows only", FUTURE)(LeakWithoutBatchesOfOne)


@planted(HIDDEN, "leak in evaluation mode only", FUTURE)
class LeakInEvaluation(Decoder):
    def transform(self, x: Tensor, input_ids: Tensor) -> Tensor:
        return x if self.training else x + shift_left(self.embedding(input_ids))


@planted(HIDDEN, "leak without gradients only", FUTURE)
class LeakWithoutGradients(Decoder):
    def transform(self, x: Tensor, input_ids: Tensor) -> Tensor:
        return x if torch.is_grad_enabled() else x + shift_left(self.embedding(input_ids))


@planted(HIDDEN, "leak at full length only", FUTURE)
class LeakAtFullLength(Decoder):
    def transform(self, x: Tensor, input_ids: Tensor) -> Tensor:
        return x + shift_left(self.embedding(input_ids)) if x.shape[1] == self.context else x


@planted(HIDDEN, "leak through a gate that training opens", FUTURE)
class LearnedGate(Decoder):
    def build(self) -> None:
        self.gate = nn.Parameter(torch.zeros(()))

    def transform(self, x: Tensor, input_ids: Tensor) -> Tensor:
        return x + self.gate * shift_left(self.embedding(input_ids))


@planted(HIDDEN, "leak under noise in evaluation mode", FUTURE)
class NoisyLeak(Decoder):
    def transform(self, x: Tensor, input_ids: Tensor) -> Tensor:
        return x + 0.3 * torch.randn_like(x) + shift_left(self.embedding(input_ids))


@planted(HIDDEN, "leak in bfloat16", FUTURE)
class BFloat16Leak(Decoder):
    def transform(self, x: Tensor, input_ids: Tensor) -> Tensor:
        return (x.bfloat16() + 0.5 * shift_left(self.embedding(input_ids)).bfloat16()).to(x.dtype)


@planted(HIDDEN, "leak of a single bit: whether the next token is even", FUTURE)
class ParityLeak(Decoder):
    def transform(self, x: Tensor, input_ids: Tensor) -> Tensor:
        return x + (shift_left(input_ids) % 2)[..., None].to(x.dtype)


@planted(HIDDEN, "leak of the token five positions ahead", FUTURE)
class DistantLeak(Decoder):
    def transform(self, x: Tensor, input_ids: Tensor) -> Tensor:
        return x + shift_left(self.embedding(input_ids), 5)


@planted(HIDDEN, "leak at one position of the text", FUTURE)
class LeakAtOnePosition(Decoder):
    def transform(self, x: Tensor, input_ids: Tensor) -> Tensor:
        local = (torch.arange(x.shape[1]) == 7)[:, None]
        return x + 3 * local * shift_left(self.embedding(input_ids))


@planted(HIDDEN, "leak into every row of the batch but the first", FUTURE)
class LeakInOtherRows(Decoder):
    def transform(self, x: Tensor, input_ids: Tensor) -> Tensor:
        leak = shift_left(self.embedding(input_ids))
        return torch.cat((x[:1], x[1:] + leak[1:]))


@planted(HIDDEN, "leak with ids read from .tolist() in Python", FUTURE)
class PythonLeak(Decoder):
    def finish(self, logits: Tensor, input_ids: Tensor) -> Tensor:
        logits = logits.clone()
        for row, ids in enumerate(input_ids.tolist()):
            for position, token in enumerate(ids[1:]):
                logits[row, position, token] += 2.0
        return logits
