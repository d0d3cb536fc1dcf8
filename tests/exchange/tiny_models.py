"""Tiny random models of transformers, built from their configurations."""

from typing import Any

import torch
import transformers
from torch import nn

VOCAB = 37
COMMON = {"vocab_size": VOCAB, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
SIZES = {
    **COMMON,
    "hidden_size": 32,
    "intermediate_size": 44,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 48,
}
GROUPED = {**SIZES, "num_key_value_heads": 2}
GPT2_SIZES = {**COMMON, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_inner": 44, "n_positions": 48}
ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}
PARTIAL_ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5}}
LLAMA3_ROPE = {
    "rope_parameters": {
        "rope_type": "llama3",
        "rope_theta": 500.0,
        "factor": 4.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
    }
}
YARN_ROPE = {
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 500.0,
        "factor": 4.0,
        "original_max_position_embeddings": 16,
    }
}
LAYERED_WINDOWS = {"sliding_window": 6, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
EXPERTS = {"head_dim": 12, "num_local_experts": 5, "num_experts_per_tok": 2, "swiglu_limit": 0.4}
MODERN = {
    "hidden_size": 32,
    "intermediate_size": 44,
    "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
    "local_attention": 8,
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
        "full_attention": {"rope_type": "default", "rope_theta": 900.0},
    },
}
FALCON = {**COMMON, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4}
BERT = {k: v for k, v in SIZES.items() if k not in ("bos_token_id", "eos_token_id")}
DISTILBERT = {
    "vocab_size": VOCAB,
    "dim": 32,
    "hidden_dim": 44,
    "n_layers": 3,
    "n_heads": 4,
    "max_position_embeddings": 48,
}
T5 = {
    "vocab_size": VOCAB,
    "d_model": 32,
    "d_kv": 12,
    "d_ff": 44,
    "num_layers": 3,
    "num_heads": 4,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 20,
}

DECODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2LMHeadModel", GPT2_SIZES),
    "gpt2, relu, untied": (
        "GPT2LMHeadModel",
        {**GPT2_SIZES, "n_inner": None, "activation_function": "relu", "tie_word_embeddings": False},
    ),
    "llama": ("LlamaForCausalLM", {**GROUPED, **ROPE, "head_dim": 12}),
    "llama, biases, tied": (
        "LlamaForCausalLM",
        {**SIZES, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    ),
    "llama, llama3 rope": ("LlamaForCausalLM", {**GROUPED, **LLAMA3_ROPE}),
    "llama, yarn": ("LlamaForCausalLM", {**GROUPED, **YARN_ROPE}),
    "mistral": ("MistralForCausalLM", {**GROUPED, **ROPE, "sliding_window": 6}),
    "mistral, no window": ("MistralForCausalLM", {**GROUPED, **ROPE, "sliding_window": None}),
    "qwen2": ("Qwen2ForCausalLM", {**GROUPED, **ROPE}),
    "qwen2, windows": ("Qwen2ForCausalLM", {**GROUPED, "use_sliding_window": True, **LAYERED_WINDOWS}),
    "qwen3": ("Qwen3ForCausalLM", {**GROUPED, **ROPE, "head_dim": 12}),
    "gemma": ("GemmaForCausalLM", {**GROUPED, **ROPE, "head_dim": 12}),
    "gemma2": (
        "Gemma2ForCausalLM",
        {**GROUPED, **ROPE, "head_dim": 12, "query_pre_attn_scalar": 20, **LAYERED_WINDOWS},
    ),
    "olmo2": ("Olmo2ForCausalLM", {**GROUPED, **ROPE}),
    "gpt_neox": ("GPTNeoXForCausalLM", {**SIZES, **PARTIAL_ROPE}),
    "gpt_neox, sequential": ("GPTNeoXForCausalLM", {**SIZES, **PARTIAL_ROPE, "use_parallel_residual": False}),
    "gptj": ("GPTJForCausalLM", {**GPT2_SIZES, "rotary_dim": 4}),
    "mpt": ("MptForCausalLM", {"vocab_size": VOCAB, "d_model": 32, "n_layers": 3, "n_heads": 4, "max_seq_len": 48}),
    "mpt, 6 heads": (
        "MptForCausalLM",
        {
            "vocab_size": VOCAB,
            "d_model": 36,
            "n_layers": 3,
            "n_heads": 6,
            "max_seq_len": 48,
            "attn_config": {"softmax_scale": 0.3},
        },
    ),
    "bloom": ("BloomForCausalLM", {**COMMON, "hidden_size": 32, "n_layer": 3, "n_head": 4}),
    "phi": ("PhiForCausalLM", {**GROUPED, **PARTIAL_ROPE}),
    "phi, qk norm": ("PhiForCausalLM", {**GROUPED, **PARTIAL_ROPE, "qk_layernorm": True}),
    "falcon, 7B": (
        "FalconForCausalLM",
        {**COMMON, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4},
    ),
    "falcon, 40B": (
        "FalconForCausalLM",
        {**FALCON, "num_kv_heads": 2, "new_decoder_architecture": True, "bias": True},
    ),
    "stablelm": ("StableLmForCausalLM", {**GROUPED, **PARTIAL_ROPE, "use_qkv_bias": True}),
    "stablelm, parallel, qk norm": (
        "StableLmForCausalLM",
        {**GROUPED, **PARTIAL_ROPE, "use_parallel_residual": True, "qk_layernorm": True},
    ),
    "granite": (
        "GraniteForCausalLM",
        {
            **GROUPED,
            **ROPE,
            "embedding_multiplier": 3.0,
            "logits_scaling": 2.0,
            "residual_multiplier": 0.4,
            "attention_multiplier": 0.2,
        },
    ),
    "diffllama": ("DiffLlamaForCausalLM", {**GROUPED, **ROPE, "attention_bias": True}),
    "gpt_oss": ("GptOssForCausalLM", {**GROUPED, **ROPE, **EXPERTS, **LAYERED_WINDOWS}),
    "gpt_oss, yarn": ("GptOssForCausalLM", {**GROUPED, **YARN_ROPE, **EXPERTS, "num_experts_per_tok": 1}),
    "cohere": ("CohereForCausalLM", {**GROUPED, **ROPE, "logit_scale": 0.5}),
    "cohere, qk norm": ("CohereForCausalLM", {**GROUPED, **ROPE, "logit_scale": 0.5, "use_qk_norm": True}),
}
ENCODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("BertForMaskedLM", BERT),
    "bert, no head": ("BertModel", BERT),
    "distilbert": ("DistilBertForMaskedLM", DISTILBERT),
    "roberta": ("RobertaForMaskedLM", {**BERT, "pad_token_id": 1, "max_position_embeddings": 50}),
    "electra": ("ElectraForMaskedLM", {**BERT, "embedding_size": 20}),
    "electra, no head": ("ElectraModel", {**BERT, "embedding_size": 20}),
    "modernbert": ("ModernBertForMaskedLM", {**SIZES, **MODERN, "cls_token_id": 0, "sep_token_id": 0}),
    "modernbert, no head": ("ModernBertModel", {**SIZES, **MODERN, "cls_token_id": 0, "sep_token_id": 0}),
    "t5": ("T5EncoderModel", T5),
    "t5, gated": ("T5EncoderModel", {**T5, "feed_forward_proj": "gated-gelu"}),
}
MODELS = DECODERS | ENCODERS


def build_tiny_model(name: str, seed: int = 0) -> nn.Module:
    """Return a random model whose weights are large enough for every part to change the output."""
    class_name, settings = MODELS[name]
    model_class = getattr(transformers, class_name)
    torch.manual_seed(seed)
    config = model_class.config_class(**settings)
    model: nn.Module = model_class._from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            is_scale = (parameter.dim() == 1 and "norm" in parameter_name.lower()) or ".ln_" in parameter_name
            is_scale &= parameter_name.endswith("weight") and "gemma" not in name
            parameter.normal_(1.0 if is_scale else 0.0, 0.15)
    return model
