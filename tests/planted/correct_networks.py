"""Correct networks with unusual code. No audit may withhold a verdict on them."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .collection import correct, shift_right
from .networks import Decoder

# ---- precision


@correct("convolution by FFT in float32")
class FourierConvolution(Decoder):
    def build(self) -> None:
        self.kernel = nn.Parameter(torch.randn(self.context, self.width) * 0.1)

    def transform(self, x: Tensor, input_ids: Tensor) -> Tensor:
        length = x.shape[1]
        kernel = torch.fft.rfft(self.kernel[:length].float(), 2 * length, dim=0)
        out = torch.fft.irfft(torch.fft.rfft(x.float(), 2 * length, dim=1) * kernel, 2 * length, dim=1)
        return x + out[:, :length].to(x.dtype)


@correct("attention in bfloat16")
class BFloat16Attention(Decoder):
    def attend(self, x: Tensor, attention_mask: Tensor | None) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return super().attend(x, attention_mask).to(x.dtype)


@correct("scaled_dot_product_attention in bfloat16 and an output layer in bfloat16")
class BFloat16Output(Decoder):
    def attend(self, x: Tensor, attention_mask: Tensor | None) -> Tensor:
        query, key, value = (part[:, None].bfloat16() for part in self.project(x).chunk(3, -1))
        return F.scaled_dot_product_attention(query, key, value, is_causal=True)[:, 0].to(x.dtype)

    def finish(self, logits: Tensor, input_ids: Tensor) -> Tensor:
        return logits.bfloat16().to(logits.dtype)


@correct("float16 weights for the attention scores")
class Float16Scores(Decoder):
    def weigh(self, scores: Tensor) -> Tensor:
        return scores.half().softmax(-1).to(scores.dtype)


@correct("softmax in float32 inside a model of another precision")
class Float32Softmax(Decoder):
    def weigh(self, scores: Tensor) -> Tensor:
        return scores.float().softmax(-1).to(scores.dtype)


@correct("state space model with complex64 arithmetic")
class ComplexStateSpace(Decoder):
    def build(self) -> None:
        self.rate, self.mix = nn.Parameter(torch.randn(self.width)), nn.Parameter(torch.randn(self.width))

    def transform(self, x: Tensor, input_ids: Tensor) -> Tensor:
        step = torch.exp(torch.complex(-self.rate.exp() * 0.1, self.mix).to(torch.complex64))
        states, state = [], torch.zeros(len(x), self.width, dtype=torch.complex64)
        for position in range(x.shape[1]):
            state = step * state + x[:, position].to(torch.complex64)
            states.append(state)
        return x + 0.1 * torch.stack(states, 1).real.to(x.dtype)


@correct("weights rounded to 8 bits, activations to 8 bits with a scale per token")
class Quantized(Decoder):
    def transform(self, x: Tensor, input_ids: Tensor) -> Tensor:
        scale = x.detach().abs().amax(-1, keepdim=True).clamp_min(1e-6) / 127
        return x + ((x / scale).round() * scale - x).detach()


@correct("logits scaled to thousands")
class LargeLogits(Decoder):
    def finish(self, logits: Tensor, input_ids: Tensor) -> Tensor:
        return 300 * logits


# ---- experts


@correct("sparse experts, top 1 of 4 per token")
class SparseExperts(Decoder):
    def build(self) -> None:
        self.router, self.experts = (
            nn.Linear(self.width, 4),
            nn.ModuleList(nn.Linear(self.width, self.width) for _ in range(4)),
        )

    def transform(self, x: Tensor, input_ids: Tensor) -> Tensor:
        weights, chosen = self.router(x).softmax(-1).max(-1)
        out = torch.zeros_like(x)
        for index, expert in enumerate(self.experts):
            rows = chosen == index
            if rows.any():
                out[rows] = expert(x[rows]) * weights[rows][:, None]
        return x + out


@correct("sparse experts with a capacity per row that earlier tokens fill first")
class CausalCapacity(SparseExperts):
    def transform(self, x: Tensor, input_ids: Tensor) -> Tensor:
        weights, chosen = self.router(x).softmax(-1).max(-1)
        rank = F.one_hot(chosen, 4).cumsum(1).gather(-1, chosen[..., None])[..., 0]
        out = sum((chosen == index)[..., None] * expert(x) for index, expert in enumerate(self.experts))
        return x + torch.where((rank <= 6)[..., None], out * weights[..., None], 0.0)


@correct("top-2 experts gathered with index_add")
class GatheredExperts(SparseExperts):
    def transform(self, x: Tensor, input_ids: Tensor) -> Tensor:
        flat = x.reshape(-1, self.width)
        weights, chosen = self.router(flat).softmax(-1).topk(2, -1)
        out = torch.zeros_like(flat)
        for index, expert in enumerate(self.experts):
            token, slot = (chosen == index).nonzero(as_tuple=True)
            out = out.index_add(0, token, expert(flat[token]) * weights[token, slot, None])
        return x + out.view_as(x)


@correct("tokens above a fixed router threshold skip the layer")
class EarlyExit(Decoder):
    def build(self) -> None:
        self.gate, self.layer = nn.Linear(self.width, 1), nn.Linear(self.width, self.width)

    def transform(self, x: Tensor, input_ids: Tensor) -> Tensor:
        return torch.where(self.gate(x) > 0, x, x + self.layer(x).tanh())


# ---- code that probes trip over


@correct("a Python number read with .item() in every pass")
class ReadsItem(Decoder):
    def transform(self, x: Tensor, input_ids: Tensor) -> Tensor:
        return x * (2.0 if self.head.bias.abs().max().item() < 1e6 else 1.0)


@correct("tensors created without device= and dtype=")
class BareTensors(Decoder):
    def embed(self, input_ids: Tensor) -> Tensor:
        return self.embedding(input_ids) + 0.1 * torch.arange(input_ids.shape[1])[:, None].float().sin()


@correct("in-place operations on activations")
class InPlace(Decoder):
    def embed(self, input_ids: Tensor) -> Tensor:
        x = self.embedding(input_ids)
        x *= math.sqrt(self.width)
        x += self.position(torch.arange(input_ids.shape[1]))
        return x

    def transform(self, x: Tensor, input_ids: Tensor) -> Tensor:
        x = x.clone()
        x[:, 1:] += 0.5 * x[:, :-1].clone()
        return F.relu_(x)


@correct("numpy arithmetic inside forward")
class NumpyBias(Decoder):
    def embed(self, input_ids: Tensor) -> Tensor:
        x = super().embed(input_ids)
        angles = np.outer(np.arange(input_ids.shape[1]), 1.0 / (1 + np.arange(self.width)))
        return x + torch.from_numpy(np.sin(angles)).to(x)


@correct("maps of the last pass kept for a plot")
class KeepsMaps(Decoder):
    maps: Any = None

    def weigh(self, scores: Tensor) -> Tensor:
        self.maps = scores.softmax(-1)
        return self.maps


@correct("causal mask and rotation table computed on demand and kept")
class LazyTables(Decoder):
    table: Tensor | None = None

    def visible(self, scores: Tensor) -> Tensor:
        length = scores.shape[-1]
        if self.table is None or len(self.table) < length:
            self.table = torch.ones(length, length, dtype=torch.bool).tril()
        return self.table[:length, :length]


@dataclass
class OwnOutput:
    logits: Tensor
    hidden: Tensor


@correct("an output object of its own")
class OutputObject(Decoder):
    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Any:
        logits = super().forward(input_ids, attention_mask)
        return OwnOutput(logits, logits)


@correct("a custom autograd function")
class OwnGradient(Decoder):
    class Clip(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clamp(-3, 3)

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
            return gradient

    def transform(self, x: Tensor, input_ids: Tensor) -> Tensor:
        out: Tensor = self.Clip.apply(x)  # type: ignore[no-untyped-call]
        return out


@correct("forward(idx, targets) that returns the last position without targets")
class NanoStyle(Decoder):
    def forward(self, idx: Tensor, targets: Tensor | None = None) -> Any:  # type: ignore[override]
        logits = super().forward(idx)
        if targets is None:
            return logits[:, [-1]], None
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())


# ---- lengths


@correct("texts of at least 20 tokens only")
class MinimumLength(Decoder):
    def embed(self, input_ids: Tensor) -> Tensor:
        if input_ids.shape[1] < 20:
            raise ValueError("expected at least 20 tokens")
        return super().embed(input_ids)


@correct("texts of exactly the context length only")
class FixedLength(Decoder):
    def embed(self, input_ids: Tensor) -> Tensor:
        return self.embedding(input_ids) + self.position.weight


@correct("lengths divisible by 8 only, attention in blocks of earlier tokens")
class BlockLengths(Decoder):
    def visible(self, scores: Tensor) -> Tensor:
        positions = torch.arange(scores.shape[-1]).view(-1, 8).flatten()
        return super().visible(scores) & (positions[:, None] - positions[None] < 16)


@correct("batches of an even number of rows only")
class EvenBatches(Decoder):
    def embed(self, input_ids: Tensor) -> Tensor:
        halves = input_ids.view(2, -1, input_ids.shape[1])
        return super().embed(halves.flatten(0, 1))


# ---- recurrences, convolutions, sorting


@correct("GRU")
class GatedRecurrence(Decoder):
    def build(self) -> None:
        self.rnn = nn.GRU(self.width, self.width, batch_first=True)

    def transform(self, x: Tensor, input_ids: Tensor) -> Tensor:
        return x + self.rnn(x)[0]


@correct("LSTM with a learned initial state and detached chunks of 8 tokens")
class TruncatedRecurrence(Decoder):
    def build(self) -> None:
        self.cell, self.start = nn.LSTMCell(self.width, self.width), nn.Parameter(torch.zeros(2, self.width))

    def transform(self, x: Tensor, input_ids: Tensor) -> Tensor:
        hidden, cell = (part.expand(len(x), -1) for part in self.start)
        outputs = []
        for position in range(x.shape[1]):
            if position % 8 == 0:
                hidden, cell = hidden.detach(), cell.detach()
            hidden, cell = self.cell(x[:, position], (hidden, cell))
            outputs.append(hidden)
        return x + torch.stack(outputs, 1)


@correct("linear attention as a running sum")
class LinearAttention(Decoder):
    def attend(self, x: Tensor, attention_mask: Tensor | None) -> Tensor:
        query, key, value = self.project(x).chunk(3, -1)
        query, key = F.elu(query) + 1, F.elu(key) + 1
        totals = torch.einsum("btk,btv->btkv", key, value).cumsum(1)
        return torch.einsum("btk,btkv->btv", query, totals) / (query * key.cumsum(1)).sum(-1, keepdim=True)


@correct("dilated causal convolutions padded on the left")
class CausalConvolutions(Decoder):
    def build(self) -> None:
        self.layers = nn.ModuleList(nn.Conv1d(self.width, self.width, 3, dilation=2**i) for i in range(3))

    def transform(self, x: Tensor, input_ids: Tensor) -> Tensor:
        out = x.transpose(1, 2)
        for i, layer in enumerate(self.layers):
            out = out + layer(F.pad(out, (2 * 2**i, 0))).relu()
        return out.transpose(1, 2)


@correct("mean of each complete block of 4 tokens, given to later blocks")
class BlockMeans(Decoder):
    def transform(self, x: Tensor, input_ids: Tensor) -> Tensor:
        length = x.shape[1]
        padded = F.pad(x, (0, 0, 0, -length % 4))
        means = padded.unflatten(1, (-1, 4)).mean(2)
        return x + shift_right(means).repeat_interleave(4, 1)[:, :length]


@correct("attention to the 4 best of the earlier keys, by topk")
class TopKeys(Decoder):
    def weigh(self, scores: Tensor) -> Tensor:
        best = scores.topk(min(4, scores.shape[-1]), -1)
        return torch.full_like(scores, float("-inf")).scatter(-1, best.indices, best.values).softmax(-1)


@correct("features of each position sorted")
class SortedFeatures(Decoder):
    def transform(self, x: Tensor, input_ids: Tensor) -> Tensor:
        return x + x.sort(-1).values


@correct("hashed n-grams of earlier tokens as embeddings")
class HashedNgrams(Decoder):
    def build(self) -> None:
        self.ngrams = nn.Embedding(997, self.width)

    def embed(self, input_ids: Tensor) -> Tensor:
        keys = (input_ids * 31 + shift_right(input_ids) * 17 + shift_right(input_ids, 2)) % 997
        return super().embed(input_ids) + self.ngrams(keys)


@correct("pointer that copies from earlier tokens")
class Pointer(Decoder):
    def finish(self, logits: Tensor, input_ids: Tensor) -> Tensor:
        same = (input_ids[:, :, None] == input_ids[:, None, :]) & torch.ones(2 * [input_ids.shape[1]]).tril(-1).bool()
        followers = F.one_hot(torch.cat((input_ids[:, 1:], input_ids[:, :1]), 1), self.vocab_size).to(logits.dtype)
        return logits + 0.5 * same.to(logits.dtype) @ followers


@correct("attention within a window of 5 tokens")
class Window(Decoder):
    def visible(self, scores: Tensor) -> Tensor:
        return super().visible(scores) & super().visible(scores).triu(-4)


# ---- randomness, normalization, modes


@correct("noise from torch in evaluation mode")
class EvaluationNoise(Decoder):
    def transform(self, x: Tensor, input_ids: Tensor) -> Tensor:
        return x + 0.1 * torch.randn_like(x)


@correct("dropout in evaluation mode")
class EvaluationDropout(Decoder):
    def transform(self, x: Tensor, input_ids: Tensor) -> Tensor:
        return F.dropout(x, 0.2, training=True)


@correct("noise from numpy and Python in evaluation mode")
class NumpyNoise(Decoder):
    def transform(self, x: Tensor, input_ids: Tensor) -> Tensor:
        noise = torch.from_numpy(np.random.standard_normal(tuple(x.shape))).to(x)  # noqa: NPY002
        return x + 0.1 * noise + 0.01 * random.random()


@correct("noise from a generator that is seeded anew in every pass")
class SeededNoise(Decoder):
    def transform(self, x: Tensor, input_ids: Tensor) -> Tensor:
        generator = torch.Generator().manual_seed(3)
        return x + 0.1 * torch.randn(x.shape[1:], generator=generator).to(x)


@correct("batch norm with running statistics in evaluation mode")
class RunningBatchNorm(Decoder):
    def build(self) -> None:
        self.norm = nn.BatchNorm1d(self.width)

    def transform(self, x: Tensor, input_ids: Tensor) -> Tensor:
        return self.norm(x.flatten(0, 1)).view_as(x)


@correct("dropout, and noise on the embeddings in training mode only")
class TrainingNoise(Decoder):
    def embed(self, input_ids: Tensor) -> Tensor:
        x = super().embed(input_ids)
        return F.dropout(x + 0.1 * torch.randn_like(x), 0.1) if self.training else x


@correct("straight-through Gumbel choice in training mode, argmax in evaluation mode")
class GumbelChoice(Decoder):
    def build(self) -> None:
        self.gate, self.codes = nn.Linear(self.width, 4), nn.Parameter(torch.randn(4, self.width))

    def transform(self, x: Tensor, input_ids: Tensor) -> Tensor:
        scores = self.gate(x)
        choice = F.gumbel_softmax(scores, hard=True) if self.training else F.one_hot(scores.argmax(-1), 4).to(x.dtype)
        return x + choice @ self.codes


@correct("a memory that is cleared at the start of every pass")
class ClearedMemory(Decoder):
    def transform(self, x: Tensor, input_ids: Tensor) -> Tensor:
        self.memory: list[Tensor] = []
        for position in range(x.shape[1]):
            past = torch.stack(self.memory[-3:]).mean(0) if self.memory else torch.zeros_like(x[:, 0])
            self.memory.append(x[:, position] + 0.5 * past)
        return torch.stack(self.memory, 1)


@correct("a step counter that only training reads")
class CountsSteps(Decoder):
    steps = 0

    def transform(self, x: Tensor, input_ids: Tensor) -> Tensor:
        self.steps += 1
        return F.dropout(x, 1 / self.steps, training=self.training)


# ---- padding


@correct("padding masked in the attention", is_padded=True)
class MaskedPadding(Decoder):
    def attend(self, x: Tensor, attention_mask: Tensor | None) -> Tensor:
        query, key, value = self.project(x).chunk(3, -1)
        scores = self.mask((query @ key.transpose(1, 2)) * self.width**-0.5)
        if attention_mask is not None:
            scores = scores.masked_fill(~attention_mask[:, None], torch.finfo(scores.dtype).min)
        return scores.softmax(-1) @ value


@correct("padding attended to, which causality makes harmless", is_padded=True)
class AttendedPadding(Decoder):
    pass


@correct("the padding token excluded from the predictions", is_padded=True)
class NoPaddingPredicted(Decoder):
    def finish(self, logits: Tensor, input_ids: Tensor) -> Tensor:
        logits = logits.clone()
        logits[..., 0] = float("-inf")
        return logits


@correct("rows packed without padding and unpacked again", is_padded=True)
class PackedRows(Decoder):
    def build(self) -> None:
        self.rnn = nn.GRU(self.width, self.width, batch_first=True)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Any:
        x = self.embed(input_ids)
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask.long()
        lengths = mask.sum(1).clamp_min(1)
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        out, _ = nn.utils.rnn.pad_packed_sequence(self.rnn(packed)[0], batch_first=True, total_length=x.shape[1])
        return self.head(out)
