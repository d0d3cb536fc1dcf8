"""With copied weights, our logits equal those of tiny random models of transformers, an independent implementation.

Models are built offline from their configurations.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from headtohead.config.tables import model as config_model
from headtohead.model_factory import build_model
from headtohead.nn.transformer import Transformer

VOCAB, WIDTH, HEADS, LAYERS, CONTEXT, HIDDEN = 37, 32, 4, 3, 48, 44
LENGTHS = (1, 7, 40)
TOLERANCE = 1e-5

Weights = dict[str, Tensor]


@dataclass(frozen=True)
class Architecture:
    """An architecture of transformers: its model, our equivalent settings, and a conversion of its weights."""

    build_reference: Callable[[], nn.Module]
    settings: dict[str, Any]
    convert_weights: Callable[[Weights], Weights]
    num_classes: int | None = None


def eager(config: Any) -> Any:
    config._attn_implementation = "eager"
    return config


def linear(weights: Weights, ours: str, theirs: str, bias: bool = True, transposed: bool = False) -> Weights:
    weight = weights[f"{theirs}.weight"]
    result = {f"{ours}.weight": weight.T if transposed else weight}
    return result | ({f"{ours}.bias": weights[f"{theirs}.bias"]} if bias else {})


def gpt2() -> nn.Module:
    return transformers.GPT2LMHeadModel(
        eager(
            transformers.GPT2Config(
                vocab_size=VOCAB,
                n_positions=CONTEXT,
                n_embd=WIDTH,
                n_layer=LAYERS,
                n_head=HEADS,
                n_inner=HIDDEN,
                activation_function="gelu_new",
                bos_token_id=0,
                eos_token_id=0,
            )
        )
    )


def gpt2_weights(w: Weights) -> Weights:
    result = {
        "embedding.weight": w["transformer.wte.weight"],
        "positions.0.table.weight": w["transformer.wpe.weight"],
        "output.weight": w["lm_head.weight"],
        **linear(w, "final_norm.inner", "transformer.ln_f"),
    }
    for i in range(LAYERS):
        ours, theirs = f"layers.{i}", f"transformer.h.{i}"
        result |= linear(w, f"{ours}.block.attention_norm.inner", f"{theirs}.ln_1")
        result |= linear(w, f"{ours}.block.feed_norm.inner", f"{theirs}.ln_2")
        # Their matrices are stored input first, and queries, keys and values side by side.
        fused = linear(w, "qkv", f"{theirs}.attn.c_attn", transposed=True)
        for name, weight, bias in zip(
            ("query", "key", "value"), fused["qkv.weight"].chunk(3), fused["qkv.bias"].chunk(3), strict=True
        ):
            result[f"{ours}.attention.projection.{name}.weight"] = weight
            result[f"{ours}.attention.projection.{name}.bias"] = bias
        result |= linear(w, f"{ours}.attention.output", f"{theirs}.attn.c_proj", transposed=True)
        result |= linear(w, f"{ours}.feedforward.up", f"{theirs}.mlp.c_fc", transposed=True)
        result |= linear(w, f"{ours}.feedforward.down", f"{theirs}.mlp.c_proj", transposed=True)
    return result


GPT2 = Architecture(
    gpt2,
    {
        "position": "learned",
        "projection": {"kind": "linear", "bias": True},
        "feedforward": {"kind": "mlp", "hidden": HIDDEN, "activation": "gelu-tanh"},
        "tie_word_embeddings": True,
        "output": {"kind": "linear", "bias": False},
    },
    gpt2_weights,
)


def llama_config(**more: Any) -> dict[str, Any]:
    return {
        "vocab_size": VOCAB,
        "hidden_size": WIDTH,
        "intermediate_size": HIDDEN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": 2,
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
        "tie_word_embeddings": False,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "pad_token_id": 0,
        **more,
    }


def llama() -> nn.Module:
    return transformers.LlamaForCausalLM(eager(transformers.LlamaConfig(**llama_config())))


def mistral() -> nn.Module:
    return transformers.MistralForCausalLM(eager(transformers.MistralConfig(**llama_config(sliding_window=6))))


def llama_weights(w: Weights) -> Weights:
    result = {
        "embedding.weight": w["model.embed_tokens.weight"],
        "output.weight": w["lm_head.weight"],
        "final_norm.inner.weight": w["model.norm.weight"],
    }
    for i in range(LAYERS):
        ours, theirs = f"layers.{i}", f"model.layers.{i}"
        for name, other in (
            ("block.attention_norm.inner", "input_layernorm"),
            ("block.feed_norm.inner", "post_attention_layernorm"),
            ("attention.projection.query", "self_attn.q_proj"),
            ("attention.projection.key", "self_attn.k_proj"),
            ("attention.projection.value", "self_attn.v_proj"),
            ("attention.output", "self_attn.o_proj"),
            ("feedforward.gate", "mlp.gate_proj"),
            ("feedforward.up", "mlp.up_proj"),
            ("feedforward.down", "mlp.down_proj"),
        ):
            result |= linear(w, f"{ours}.{name}", f"{theirs}.{other}", bias=False)
    return result


LLAMA = Architecture(
    llama,
    {
        "position": {"kind": "rope", "base": 500.0},
        "norm": {"kind": "rms", "eps": 1e-6},
        "projection": {"kind": "linear", "key_heads": 2},
        "attention": {"kind": "composed", "output_bias": False},
        "feedforward": {"kind": "swiglu", "hidden": HIDDEN},
        "output": {"kind": "linear", "bias": False},
    },
    llama_weights,
)
MISTRAL = Architecture(mistral, {**LLAMA.settings, "pattern": {"kind": "window", "size": 6}}, llama_weights)


def bloom() -> nn.Module:
    return transformers.BloomForCausalLM(
        eager(
            transformers.BloomConfig(
                vocab_size=VOCAB,
                hidden_size=WIDTH,
                n_layer=LAYERS,
                n_head=HEADS,
                bos_token_id=0,
                eos_token_id=0,
                pad_token_id=0,
            )
        )
    )


def bloom_weights(w: Weights) -> Weights:
    result = {
        "embedding.weight": w["transformer.word_embeddings.weight"],
        "output.weight": w["lm_head.weight"],
        **linear(w, "embedding_norm.inner", "transformer.word_embeddings_layernorm"),
        **linear(w, "final_norm.inner", "transformer.ln_f"),
    }
    for i in range(LAYERS):
        ours, theirs = f"layers.{i}", f"transformer.h.{i}"
        result |= linear(w, f"{ours}.block.attention_norm.inner", f"{theirs}.input_layernorm")
        result |= linear(w, f"{ours}.block.feed_norm.inner", f"{theirs}.post_attention_layernorm")
        # Head by head: a head's queries, keys and values, then the next head's.
        fused = linear(w, "qkv", f"{theirs}.self_attention.query_key_value")
        split = {part: x.unflatten(0, (HEADS, 3, WIDTH // HEADS)) for part, x in fused.items()}
        for index, name in enumerate(("query", "key", "value")):
            for part, x in split.items():
                result[f"{ours}.attention.projection.{name}.{part.removeprefix('qkv.')}"] = x[:, index].flatten(0, 1)
        result |= linear(w, f"{ours}.attention.output", f"{theirs}.self_attention.dense")
        result |= linear(w, f"{ours}.feedforward.up", f"{theirs}.mlp.dense_h_to_4h")
        result |= linear(w, f"{ours}.feedforward.down", f"{theirs}.mlp.dense_4h_to_h")
    return result


BLOOM = Architecture(
    bloom,
    {
        "position": "alibi",
        "embedding_norm": True,
        "projection": {"kind": "linear", "bias": True},
        "feedforward": {"kind": "mlp", "activation": "gelu-tanh"},
        "tie_word_embeddings": True,
        "output": {"kind": "linear", "bias": False},
    },
    bloom_weights,
)


def bert() -> nn.Module:
    return transformers.BertForTokenClassification(
        eager(
            transformers.BertConfig(
                vocab_size=VOCAB,
                hidden_size=WIDTH,
                num_hidden_layers=LAYERS,
                num_attention_heads=HEADS,
                intermediate_size=HIDDEN,
                max_position_embeddings=CONTEXT,
                hidden_act="gelu",
                layer_norm_eps=1e-12,
                num_labels=3,
            )
        )
    )


def bert_weights(w: Weights) -> Weights:
    # All tokens are of type 0, whose embedding is added to every position embedding.
    types = w["bert.embeddings.token_type_embeddings.weight"]
    result = {
        "embedding.weight": w["bert.embeddings.word_embeddings.weight"],
        "positions.0.table.weight": w["bert.embeddings.position_embeddings.weight"] + types[0],
        **linear(w, "embedding_norm.inner", "bert.embeddings.LayerNorm"),
        **linear(w, "classifier", "classifier"),
    }
    for i in range(LAYERS):
        ours, theirs = f"layers.{i}", f"bert.encoder.layer.{i}"
        for name, other in (
            ("block.attention_norm.inner", "attention.output.LayerNorm"),
            ("block.feed_norm.inner", "output.LayerNorm"),
            ("attention.projection.query", "attention.self.query"),
            ("attention.projection.key", "attention.self.key"),
            ("attention.projection.value", "attention.self.value"),
            ("attention.output", "attention.output.dense"),
            ("feedforward.up", "intermediate.dense"),
            ("feedforward.down", "output.dense"),
        ):
            result |= linear(w, f"{ours}.{name}", f"{theirs}.{other}")
    return result


BERT = Architecture(
    bert,
    {
        "position": "learned",
        "block": "post",
        "norm": {"kind": "layer", "eps": 1e-12},
        "embedding_norm": True,
        "final_norm": False,
        "projection": {"kind": "linear", "bias": True},
        "feedforward": {"kind": "mlp", "hidden": HIDDEN, "activation": "gelu"},
        "classifier_hidden": None,
    },
    bert_weights,
    num_classes=3,
)

DECODERS = {"gpt2": GPT2, "llama": LLAMA, "bloom": BLOOM, "mistral": MISTRAL}


def build_pair(architecture: Architecture, seed: int, **settings: Any) -> tuple[nn.Module, Transformer]:
    """Return a model of transformers, with weights large enough for uneven attention, and ours with its weights."""
    torch.manual_seed(seed)
    theirs = architecture.build_reference().eval()
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            parameter.normal_(1.0 if "norm" in name.lower() or ".ln_" in name else 0.0, 0.15)
            if name.endswith("bias"):
                parameter.normal_(0.0, 0.15)
    model = config_model.TransformerConfig.model_validate(
        {"width": WIDTH, "layers": LAYERS, "heads": HEADS, "context": CONTEXT, **architecture.settings, **settings}
    )
    ours = build_model(model, VOCAB, architecture.num_classes, seed=seed).eval()
    assert isinstance(ours, Transformer)
    ours.load_state_dict(architecture.convert_weights(theirs.state_dict()))
    return theirs, ours


def draw_token_ids(batch_size: int, length: int, seed: int) -> Tensor:
    return torch.randint(VOCAB, (batch_size, length), generator=torch.Generator().manual_seed(seed))


def max_abs_difference(ours: Tensor, theirs: Tensor) -> float:
    return float((ours - theirs).abs().max())


def build_padding_mask(batch_size: int, length: int, side: str) -> Tensor:
    """Return a mask in which sequence i of the batch has 3 i padding tokens."""
    mask = torch.ones(batch_size, length, dtype=torch.long)
    for index in range(1, batch_size):
        padding = slice(0, 3 * index) if side == "left" else slice(length - 3 * index, length)
        mask[index, padding] = 0
    return mask


@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.parametrize("seed", [0, 1, 2])
@torch.no_grad()
def test_decoder_gives_the_logits_of_transformers(name: str, seed: int) -> None:
    theirs, ours = build_pair(DECODERS[name], seed)
    for length in LENGTHS:
        ids = draw_token_ids(3, length, seed)
        expected = theirs(input_ids=ids, use_cache=False).logits
        assert expected.std() > 0.3  # the comparison is not between constants
        for attn_implementation in ("eager", "sdpa"):
            logits = ours(ids, attn_implementation=attn_implementation).logits
            assert max_abs_difference(logits, expected) < TOLERANCE


@pytest.mark.parametrize("name", DECODERS)
@torch.no_grad()
def test_decoder_with_padding_gives_the_logits_of_transformers(name: str) -> None:
    """Left padding, as in decoding. Positions are passed to transformers; our model derives them from the mask."""
    theirs, ours = build_pair(DECODERS[name], seed=3)
    ids, mask = draw_token_ids(4, 21, seed=3), build_padding_mask(4, 21, "left")
    position_arguments = {} if name == "bloom" else {"position_ids": (mask.cumsum(1) - 1).clamp_min(0)}
    expected = theirs(input_ids=ids, attention_mask=mask, use_cache=False, **position_arguments).logits
    assert max_abs_difference(ours(ids, mask).logits[mask.bool()], expected[mask.bool()]) < TOLERANCE


@pytest.mark.parametrize(
    ("architecture", "settings"),
    [
        (GPT2, {"feedforward": {"kind": "mlp", "hidden": HIDDEN, "activation": "gelu"}}),
        (LLAMA, {"position": "rope"}),
        (LLAMA, {"block": "post"}),
        (BLOOM, {"position": "none"}),
        (BLOOM, {"position": {"kind": "alibi", "slope": 0.25}}),
        (MISTRAL, {"pattern": "causal"}),
        (MISTRAL, {"pattern": {"kind": "window", "size": 5}}),
        (BERT, {"feedforward": {"kind": "mlp", "hidden": HIDDEN, "activation": "gelu-tanh"}}),
        (BERT, {"block": "pre"}),
    ],
    ids=lambda given: ",".join(f"{k}={v}" for k, v in given.items()) if isinstance(given, dict) else "",
)
@torch.no_grad()
def test_different_settings_change_the_logits(architecture: Architecture, settings: dict[str, Any]) -> None:
    """Each of these settings changes the hidden states by far more than the tolerance, so that an error would show."""
    (_, equal), (_, different) = build_pair(architecture, seed=0), build_pair(architecture, seed=0, **settings)
    ids = draw_token_ids(3, 40, seed=0)
    assert max_abs_difference(equal(ids).last_hidden_state, different(ids).last_hidden_state) > 10 * TOLERANCE


@pytest.mark.parametrize("seed", [0, 1, 2])
@torch.no_grad()
def test_encoder_gives_the_hidden_states_of_bert(seed: int) -> None:
    theirs, ours = build_pair(BERT, seed)
    for length in LENGTHS:
        ids = draw_token_ids(3, length, seed)
        mask = build_padding_mask(3, length, "right") if length > 6 else torch.ones_like(ids)
        expected = theirs(input_ids=ids, attention_mask=mask, output_hidden_states=True).hidden_states[-1]
        for attn_implementation in ("eager", "sdpa"):
            hidden = ours(ids, mask, attn_implementation=attn_implementation).last_hidden_state
            assert max_abs_difference(hidden[mask.bool()], expected[mask.bool()]) < TOLERANCE


@torch.no_grad()
def test_classifier_on_bert_gives_the_logits_of_transformers() -> None:
    """BERT classifies each token. The class of the first token is our pool `first`; the mean of the classes is our pool
    `mean`, because a linear layer commutes with the mean.
    """
    ids, mask = draw_token_ids(4, 20, seed=4), build_padding_mask(4, 20, "right")
    for pool in ("first", "mean"):
        theirs, ours = build_pair(BERT, seed=4, pool=pool)
        logits = theirs(input_ids=ids, attention_mask=mask).logits
        weight = mask[..., None].float()
        expected = logits[:, 0] if pool == "first" else (logits * weight).sum(1) / weight.sum(1)
        assert max_abs_difference(ours(ids, mask).logits, expected) < TOLERANCE


@torch.no_grad()
def test_attention_maps_are_those_of_transformers() -> None:
    theirs, ours = build_pair(LLAMA, seed=5)
    ids = draw_token_ids(2, 12, seed=5)
    expected = theirs(input_ids=ids, output_attentions=True, use_cache=False).attentions
    our_maps = ours(ids, output_attentions=True).attentions
    assert len(our_maps) == len(expected) == LAYERS
    assert all(max_abs_difference(*maps) < TOLERANCE for maps in zip(our_maps, expected, strict=True))
