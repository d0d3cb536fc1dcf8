"""The peers' models: transformers' GPT-2, x-transformers and torch's own TransformerEncoder, with our first weights.

Where the mathematics is ours, so are the losses: GPT-2's and the encoder's biases of queries, keys and values, which we
do not have, stay at zero and are not trained, and GPT-2 is given a vocabulary layer with a bias. x-transformers has no
biases in its norms and after attention; nothing else differs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from .lessons import Shape

Weights = dict[str, Tensor]


class Peer(nn.Module):
    """A model of another library behind one call: a batch in, logits out."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, inputs: Tensor, mask: Tensor) -> Tensor:
        said: Tensor = self.inner(inputs)
        return said


# ---- transformers' GPT-2


class GPT2(Peer):
    """Right padding is never seen by what comes before it, so that no mask is needed."""

    def forward(self, inputs: Tensor, mask: Tensor) -> Tensor:
        logits: Tensor = self.inner(input_ids=inputs, use_cache=False).logits
        return logits


def gpt2(shape: Shape, start: Weights) -> GPT2:
    import transformers

    config = transformers.GPT2Config(
        vocab_size=shape.vocab,
        n_positions=shape.context,
        n_embd=shape.width,
        n_layer=shape.layers,
        n_head=shape.heads,
        n_inner=shape.hidden,
        activation_function="relu",
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        tie_word_embeddings=False,
        bos_token_id=0,
        eos_token_id=0,
    )
    inner: Any = transformers.GPT2LMHeadModel(config)
    inner.lm_head = nn.Linear(shape.width, shape.vocab)
    put = {
        "transformer.wte.weight": start["embedding.weight"],
        "transformer.wpe.weight": start["positions.0.table.weight"],
        **_norm("transformer.ln_f", start, "final_norm"),
        "lm_head.weight": start["output.weight"],
        "lm_head.bias": start["output.bias"],
    }
    for i in range(shape.layers):
        ours, theirs = f"layers.{i}", f"transformer.h.{i}"
        put |= _norm(f"{theirs}.ln_1", start, f"{ours}.block.attention_norm")
        put |= _norm(f"{theirs}.ln_2", start, f"{ours}.block.feed_norm")
        together = _projections(start, ours)
        put |= {
            f"{theirs}.attn.c_attn.weight": together.t(),
            f"{theirs}.attn.c_attn.bias": torch.zeros(len(together)),
            f"{theirs}.attn.c_proj.weight": start[f"{ours}.attention.output.weight"].t(),
            f"{theirs}.attn.c_proj.bias": start[f"{ours}.attention.output.bias"],
        }
        for part, name in (("up", "c_fc"), ("down", "c_proj")):
            put[f"{theirs}.mlp.{name}.weight"] = start[f"{ours}.feedforward.{part}.weight"].t()
            put[f"{theirs}.mlp.{name}.bias"] = start[f"{ours}.feedforward.{part}.bias"]
        inner.transformer.h[i].attn.c_attn.bias.requires_grad_(False)
    _put(inner, put)
    return GPT2(inner)


# ---- x-transformers


def x_transformers(shape: Shape, start: Weights) -> Peer:
    from x_transformers import Decoder, TransformerWrapper

    layers = Decoder(
        dim=shape.width,
        depth=shape.layers,
        heads=shape.heads,
        attn_dim_head=shape.width // shape.heads,
        attn_flash=True,
        ff_mult=shape.hidden / shape.width,
        ff_custom_activation=nn.ReLU(),
    )
    output = nn.Linear(shape.width, shape.vocab)
    inner = TransformerWrapper(num_tokens=shape.vocab, max_seq_len=shape.context, attn_layers=layers, to_logits=output)
    put = {
        "token_emb.emb.weight": start["embedding.weight"],
        # It makes positions smaller by the root of the width.
        "pos_emb.emb.weight": start["positions.0.table.weight"] * shape.width**0.5,
        "attn_layers.final_norm.gamma": start["final_norm.inner.weight"] - 1,  # it adds 1 to what it learns
        "to_logits.weight": start["output.weight"],
        "to_logits.bias": start["output.bias"],
    }
    for i in range(shape.layers):
        ours, attention, feed = f"layers.{i}", f"attn_layers.layers.{2 * i}", f"attn_layers.layers.{2 * i + 1}"
        put[f"{attention}.0.0.gamma"] = start[f"{ours}.block.attention_norm.inner.weight"] - 1
        put[f"{feed}.0.0.gamma"] = start[f"{ours}.block.feed_norm.inner.weight"] - 1
        for one, name in (("query", "to_q"), ("key", "to_k"), ("value", "to_v")):
            put[f"{attention}.1.{name}.weight"] = start[f"{ours}.attention.projection.{one}.weight"]
        put[f"{attention}.1.to_out.weight"] = start[f"{ours}.attention.output.weight"]
        for kind in ("weight", "bias"):
            put[f"{feed}.1.ff.0.0.{kind}"] = start[f"{ours}.feedforward.up.{kind}"]
            put[f"{feed}.1.ff.2.{kind}"] = start[f"{ours}.feedforward.down.{kind}"]
    _put(inner, put)
    return Peer(inner)


# ---- torch.nn.TransformerEncoder


class Encoder(nn.Module):
    """The base classifier as a plain script has it: torch's encoder, a mean over what is not padding, two layers."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(
            shape.width, shape.heads, shape.hidden, dropout=0.0, batch_first=True, norm_first=True
        )
        self.embedding = nn.Embedding(shape.vocab, shape.width)
        self.position = nn.Embedding(shape.context, shape.width)
        self.encoder = nn.TransformerEncoder(
            layer, shape.layers, norm=nn.LayerNorm(shape.width), enable_nested_tensor=False
        )
        assert shape.classes is not None
        self.classifier = nn.Sequential(nn.Linear(shape.width, 100), nn.ReLU(), nn.Linear(100, shape.classes))

    def forward(self, inputs: Tensor, mask: Tensor) -> Tensor:
        x = self.embedding(inputs) + self.position(torch.arange(inputs.shape[1]))
        x = self.encoder(x, src_key_padding_mask=~mask)
        seen = mask[..., None]
        said: Tensor = self.classifier((x * seen).sum(1) / seen.sum(1))
        return said


def encoder(shape: Shape, start: Weights) -> Encoder:
    made = Encoder(shape)
    put = {
        "embedding.weight": start["embedding.weight"],
        "position.weight": start["positions.0.table.weight"],
        **_norm("encoder.norm", start, "final_norm"),
        **{name: tensor for name, tensor in start.items() if name.startswith("classifier.")},
    }
    for i in range(shape.layers):
        ours, theirs = f"layers.{i}", f"encoder.layers.{i}"
        put |= _norm(f"{theirs}.norm1", start, f"{ours}.block.attention_norm")
        put |= _norm(f"{theirs}.norm2", start, f"{ours}.block.feed_norm")
        together = _projections(start, ours)
        put[f"{theirs}.self_attn.in_proj_weight"] = together
        put[f"{theirs}.self_attn.in_proj_bias"] = torch.zeros(len(together))
        for kind in ("weight", "bias"):
            put[f"{theirs}.self_attn.out_proj.{kind}"] = start[f"{ours}.attention.output.{kind}"]
            put[f"{theirs}.linear1.{kind}"] = start[f"{ours}.feedforward.up.{kind}"]
            put[f"{theirs}.linear2.{kind}"] = start[f"{ours}.feedforward.down.{kind}"]
        attention: Any = made.encoder.layers[i].self_attn
        attention.in_proj_bias.requires_grad_(False)
    _put(made, put)
    return made


def _norm(theirs: str, start: Weights, ours: str) -> Weights:
    return {f"{theirs}.{kind}": start[f"{ours}.inner.{kind}"] for kind in ("weight", "bias")}


def _projections(start: Weights, layer: str) -> Tensor:
    return torch.cat([start[f"{layer}.attention.projection.{one}.weight"] for one in ("query", "key", "value")])


@torch.no_grad()
def _put(model: nn.Module, weights: Weights) -> None:
    """Our weights in their places: every parameter that they have is given."""
    places = dict(model.named_parameters())
    missing = places.keys() - weights.keys()
    assert not missing, f"no weights for {sorted(missing)}"
    for name, tensor in weights.items():
        places[name].copy_(tensor)


PEERS: dict[str, Callable[[Shape, Weights], nn.Module]] = {
    "gpt2": gpt2,
    "trainer": gpt2,
    "x-transformers": x_transformers,
    "encoder": encoder,
}
