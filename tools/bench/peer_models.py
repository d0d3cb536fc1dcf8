"""Models of other libraries with our initial weights: transformers' GPT-2 and MiniLM, x-transformers, torch's
TransformerEncoder.

GPT-2 and the encoder compute our losses: their biases of queries, keys and values, which we do not have, stay at zero
and are not trained, and GPT-2 gets an output layer with a bias. x-transformers has no biases in its norms and after
attention; otherwise it is equal.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from headtohead.pretrained.weights import locate_weights

from .experiments import FINETUNED_ENCODER
from .workload import WorkloadShape

Weights = dict[str, Tensor]


class PeerModel(nn.Module):
    """A model of a different library that maps token ids and attention mask to logits."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        logits: Tensor = self.inner(input_ids)
        return logits


# ---- transformers' GPT-2


class GPT2(PeerModel):
    """GPT-2. Causal attention never attends to padding on the right, so no mask is needed."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        logits: Tensor = self.inner(input_ids=input_ids, use_cache=False).logits
        return logits


def build_gpt2(shape: WorkloadShape, weights: Weights) -> GPT2:
    """Return transformers' GPT-2 with our weights."""
    import transformers

    config = transformers.GPT2Config(
        vocab_size=shape.vocab_size,
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
    inner.lm_head = nn.Linear(shape.width, shape.vocab_size)
    peer_weights = {
        "transformer.wte.weight": weights["embedding.weight"],
        "transformer.wpe.weight": weights["positions.0.table.weight"],
        **_rename_norm("transformer.ln_f", weights, "final_norm"),
        "lm_head.weight": weights["output.weight"],
        "lm_head.bias": weights["output.bias"],
    }
    for i in range(shape.layers):
        ours, theirs = f"layers.{i}", f"transformer.h.{i}"
        peer_weights |= _rename_norm(f"{theirs}.ln_1", weights, f"{ours}.block.attention_norm")
        peer_weights |= _rename_norm(f"{theirs}.ln_2", weights, f"{ours}.block.feed_norm")
        qkv_weight = concatenate_projections(weights, ours)
        peer_weights |= {
            f"{theirs}.attn.c_attn.weight": qkv_weight.t(),
            f"{theirs}.attn.c_attn.bias": torch.zeros(len(qkv_weight)),
            f"{theirs}.attn.c_proj.weight": weights[f"{ours}.attention.output.weight"].t(),
            f"{theirs}.attn.c_proj.bias": weights[f"{ours}.attention.output.bias"],
        }
        for part, name in (("up", "c_fc"), ("down", "c_proj")):
            peer_weights[f"{theirs}.mlp.{name}.weight"] = weights[f"{ours}.feedforward.{part}.weight"].t()
            peer_weights[f"{theirs}.mlp.{name}.bias"] = weights[f"{ours}.feedforward.{part}.bias"]
        inner.transformer.h[i].attn.c_attn.bias.requires_grad_(False)
    _load_weights(inner, peer_weights)
    return GPT2(inner)


# ---- x-transformers


def build_x_transformers(shape: WorkloadShape, weights: Weights) -> PeerModel:
    """Return the decoder of x-transformers with our weights."""
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
    output = nn.Linear(shape.width, shape.vocab_size)
    inner = TransformerWrapper(
        num_tokens=shape.vocab_size, max_seq_len=shape.context, attn_layers=layers, to_logits=output
    )
    peer_weights = {
        "token_emb.emb.weight": weights["embedding.weight"],
        # x-transformers divides positions by the square root of the width.
        "pos_emb.emb.weight": weights["positions.0.table.weight"] * shape.width**0.5,
        "attn_layers.final_norm.gamma": weights["final_norm.inner.weight"] - 1,  # it adds 1
        "to_logits.weight": weights["output.weight"],
        "to_logits.bias": weights["output.bias"],
    }
    for i in range(shape.layers):
        ours, attention, feed = f"layers.{i}", f"attn_layers.layers.{2 * i}", f"attn_layers.layers.{2 * i + 1}"
        peer_weights[f"{attention}.0.0.gamma"] = weights[f"{ours}.block.attention_norm.inner.weight"] - 1
        peer_weights[f"{feed}.0.0.gamma"] = weights[f"{ours}.block.feed_norm.inner.weight"] - 1
        for projection, name in (("query", "to_q"), ("key", "to_k"), ("value", "to_v")):
            peer_weights[f"{attention}.1.{name}.weight"] = weights[f"{ours}.attention.projection.{projection}.weight"]
        peer_weights[f"{attention}.1.to_out.weight"] = weights[f"{ours}.attention.output.weight"]
        for kind in ("weight", "bias"):
            peer_weights[f"{feed}.1.ff.0.0.{kind}"] = weights[f"{ours}.feedforward.up.{kind}"]
            peer_weights[f"{feed}.1.ff.2.{kind}"] = weights[f"{ours}.feedforward.down.{kind}"]
    _load_weights(inner, peer_weights)
    return PeerModel(inner)


# ---- torch.nn.TransformerEncoder


class Encoder(nn.Module):
    """The base classifier: torch's encoder, mean pooling over tokens that are not padding, and two layers."""

    def __init__(self, shape: WorkloadShape) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(
            shape.width, shape.heads, shape.hidden, dropout=0.0, batch_first=True, norm_first=True
        )
        self.embedding = nn.Embedding(shape.vocab_size, shape.width)
        self.position = nn.Embedding(shape.context, shape.width)
        self.encoder = nn.TransformerEncoder(
            layer, shape.layers, norm=nn.LayerNorm(shape.width), enable_nested_tensor=False
        )
        assert shape.num_classes is not None
        self.classifier = nn.Sequential(nn.Linear(shape.width, 100), nn.ReLU(), nn.Linear(100, shape.num_classes))

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        hidden_states = self.embedding(input_ids) + self.position(torch.arange(input_ids.shape[1]))
        hidden_states = self.encoder(hidden_states, src_key_padding_mask=~attention_mask)
        token_mask = attention_mask[..., None]
        logits: Tensor = self.classifier((hidden_states * token_mask).sum(1) / token_mask.sum(1))
        return logits


def build_encoder(shape: WorkloadShape, weights: Weights) -> Encoder:
    """Return the classifier based on torch.nn.TransformerEncoder with our weights."""
    model = Encoder(shape)
    peer_weights = {
        "embedding.weight": weights["embedding.weight"],
        "position.weight": weights["positions.0.table.weight"],
        **_rename_norm("encoder.norm", weights, "final_norm"),
        **{name: tensor for name, tensor in weights.items() if name.startswith("classifier.")},
    }
    for i in range(shape.layers):
        ours, theirs = f"layers.{i}", f"encoder.layers.{i}"
        peer_weights |= _rename_norm(f"{theirs}.norm1", weights, f"{ours}.block.attention_norm")
        peer_weights |= _rename_norm(f"{theirs}.norm2", weights, f"{ours}.block.feed_norm")
        qkv_weight = concatenate_projections(weights, ours)
        peer_weights[f"{theirs}.self_attn.in_proj_weight"] = qkv_weight
        peer_weights[f"{theirs}.self_attn.in_proj_bias"] = torch.zeros(len(qkv_weight))
        for kind in ("weight", "bias"):
            peer_weights[f"{theirs}.self_attn.out_proj.{kind}"] = weights[f"{ours}.attention.output.{kind}"]
            peer_weights[f"{theirs}.linear1.{kind}"] = weights[f"{ours}.feedforward.up.{kind}"]
            peer_weights[f"{theirs}.linear2.{kind}"] = weights[f"{ours}.feedforward.down.{kind}"]
        attention: Any = model.encoder.layers[i].self_attn
        attention.in_proj_bias.requires_grad_(False)
    _load_weights(model, peer_weights)
    return model


def _rename_norm(theirs: str, weights: Weights, ours: str) -> Weights:
    """Return the weights of our norm `ours` under the peer's name `theirs`."""
    return {f"{theirs}.{kind}": weights[f"{ours}.inner.{kind}"] for kind in ("weight", "bias")}


def concatenate_projections(weights: Weights, layer: str) -> Tensor:
    """Return the projections of queries, keys and values of a layer as one matrix, (3 * width, width)."""
    return torch.cat(
        [weights[f"{layer}.attention.projection.{projection}.weight"] for projection in ("query", "key", "value")]
    )


@torch.no_grad()
def _load_weights(model: nn.Module, weights: Weights) -> None:
    """Copy weights into all parameters of a model."""
    parameters = dict(model.named_parameters())
    missing = parameters.keys() - weights.keys()
    assert not missing, f"no weights for {sorted(missing)}"
    for name, tensor in weights.items():
        parameters[name].copy_(tensor)


# ---- transformers' MiniLM


class MiniLM(nn.Module):
    """MiniLM with mean pooling over tokens that are not padding, dropout and a linear layer."""

    def __init__(self, inner: nn.Module, num_classes: int, width: int, dropout: float) -> None:
        super().__init__()
        self.inner: Any = inner
        self.head = nn.ModuleDict({"dropout": nn.Dropout(dropout), "classifier": nn.Linear(width, num_classes)})

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        hidden_states = self.inner(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        token_mask = attention_mask[..., None]
        pooled = (hidden_states * token_mask).sum(1) / token_mask.sum(1)
        logits: Tensor = self.head["classifier"](self.head["dropout"](pooled))
        return logits


def build_minilm(shape: WorkloadShape, weights: Weights) -> MiniLM:
    """Return transformers' MiniLM with our head."""
    import transformers

    folder = locate_weights(FINETUNED_ENCODER).folder
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    inner: Any = transformers.AutoModel.from_pretrained(folder, add_pooling_layer=False, local_files_only=True)
    assert shape.num_classes is not None
    model = MiniLM(inner, shape.num_classes, shape.width, inner.config.hidden_dropout_prob)
    _load_weights(model, weights)
    return model


PEER_BUILDERS: dict[str, Callable[[WorkloadShape, Weights], nn.Module]] = {
    "gpt2": build_gpt2,
    "trainer": build_gpt2,
    "x-transformers": build_x_transformers,
    "encoder": build_encoder,
    "minilm": build_minilm,
    "minilm-trainer": build_minilm,
}
