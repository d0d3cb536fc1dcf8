"""The architectures of transformers that can be imported and exported, by model type."""

from __future__ import annotations

from headtohead.errors import ModelError, format_suggestion
from headtohead.exchange.architectures import (
    bert_family,
    diffllama_gpt_oss,
    gpt_family,
    llama_family,
    modernbert,
    mpt_bloom_falcon,
    stablelm_granite_cohere_phi,
    t5,
)
from headtohead.exchange.architectures.architecture import Architecture

ARCHITECTURES: tuple[Architecture, ...] = (
    gpt_family.GPT2,
    llama_family.LLAMA,
    llama_family.MISTRAL,
    llama_family.QWEN2,
    llama_family.QWEN3,
    llama_family.GEMMA,
    llama_family.GEMMA2,
    llama_family.OLMO2,
    gpt_family.GPT_NEOX,
    gpt_family.GPTJ,
    mpt_bloom_falcon.MPT,
    mpt_bloom_falcon.BLOOM,
    stablelm_granite_cohere_phi.PHI,
    mpt_bloom_falcon.FALCON,
    stablelm_granite_cohere_phi.STABLELM,
    stablelm_granite_cohere_phi.GRANITE,
    stablelm_granite_cohere_phi.COHERE,
    diffllama_gpt_oss.DIFFLLAMA,
    diffllama_gpt_oss.GPT_OSS,
    bert_family.BERT,
    bert_family.DISTILBERT,
    bert_family.ROBERTA,
    bert_family.ELECTRA,
    modernbert.MODERNBERT,
    t5.T5_ENCODER,
)
"""in the order in which export tries them"""


def get_architecture(model_type: str) -> Architecture:
    """Return the registered architecture of a transformers model type; raise ModelError if it is not supported."""
    by_type = {architecture.model_type: architecture for architecture in ARCHITECTURES}
    if model_type not in by_type:
        hint = format_suggestion(model_type, by_type)
        raise ModelError(f"model type {model_type!r} cannot be imported{hint} (supported: {', '.join(by_type)})")
    return by_type[model_type]
