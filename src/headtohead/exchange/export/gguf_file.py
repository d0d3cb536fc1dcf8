"""Write a run as a GGUF file for llama.cpp, where llama.cpp has its architecture, and read the file with transformers.

Names of tensors and metadata are those of the package `gguf`; layouts are those that convert_hf_to_gguf.py of llama.cpp
writes.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from headtohead.data.tokenization.tokenizers import CorpusTokenizer
from headtohead.errors import RequestError, format_suggestion
from headtohead.exchange.architectures.architecture import NoMatchError
from headtohead.exchange.architectures.registry import get_architecture
from headtohead.exchange.conversion.output_difference import check_export_difference
from headtohead.exchange.conversion.to_transformers import (
    EXPORT_PURPOSE,
    convert_to_transformers,
    find_architecture,
)
from headtohead.exchange.export.transformers_folder import (
    ExportedModel,
    check_folder_is_empty,
    load_model_of_parts,
)
from headtohead.nn.transformer import Transformer
from headtohead.pretrained.loading import import_transformers, silence_transformers

MODEL_FILE = "model.gguf"
FLOAT32_FILE_TYPE = 0
NORMAL_TOKEN, CONTROL_TOKEN = 1, 3


@dataclass(frozen=True)
class GgufArchitecture:
    """What llama.cpp computes for an architecture.

    Args:
        required: Allowed values of fields of the transformers configuration that a GGUF file cannot express.
        transposed: Endings of tensor names that transformers stores transposed.
        has_interleaved_rope: Whether llama.cpp rotates adjacent dimensions; transformers rotates the two halves.
    """

    required: dict[str, tuple[Any, ...]]
    transposed: tuple[str, ...] = ()
    has_interleaved_rope: bool = False


SILU = {"hidden_act": ("silu",)}
GGUF_ARCHITECTURES = {
    "gpt2": GgufArchitecture(
        {"activation_function": ("gelu_new", "gelu_pytorch_tanh")},
        transposed=(".c_attn.weight", ".c_proj.weight", ".c_fc.weight"),
    ),
    "llama": GgufArchitecture(SILU, has_interleaved_rope=True),
    "qwen2": GgufArchitecture({**SILU, "use_sliding_window": (False,)}),
    "qwen3": GgufArchitecture({**SILU, "use_sliding_window": (False,)}),
}
"""architectures that llama.cpp has and transformers reads from GGUF, by model type, in the order of preference"""
OVERRIDDEN_FIELDS = frozenset(
    {"attention_bias", "mlp_bias", "head_dim", "n_inner", "n_positions", "vocab_size", "tie_word_embeddings"}
)
"""fields of the configuration that transformers does not read from GGUF files. llama.cpp reads them, or infers them
from the tensors."""


def export_to_gguf(source: str | Path, folder: Path, *, model_type: str | None = None) -> ExportedModel:
    """Write the model of a run folder to model.gguf in float32, and its tokenizer to tokenizer.json.

    The file contains byte-level BPE tokenizers. llama.cpp has no tokenizers of words or characters: with these, it only
    accepts token ids.
    """
    transformers = import_transformers(EXPORT_PURPOSE)
    saved, model = load_model_of_parts(source)
    check_folder_is_empty(folder)
    with silence_transformers(transformers):
        transformers_model = _convert_to_gguf_architecture(model, model_type)
        folder.mkdir(parents=True, exist_ok=True)
        tokenizer = saved.tokenizer if isinstance(saved.tokenizer, CorpusTokenizer) else None
        write_gguf_file(transformers_model, tokenizer, folder / MODEL_FILE)
        if tokenizer is not None:
            tokenizer.backend.save(str(folder / "tokenizer.json"))
        difference = check_export_difference(_load_gguf_file(transformers, folder, transformers_model.config), model)
    title = get_architecture(transformers_model.config.model_type).title
    return ExportedModel(folder, f"{title} in GGUF", difference)


def _convert_to_gguf_architecture(model: Transformer, model_type: str | None) -> Any:
    """Return the model to write as GGUF, as the first architecture that llama.cpp has.

    Raise NoMatchError with the reasons if none has its parts.
    """
    if model_type is not None and model_type not in GGUF_ARCHITECTURES:
        raise RequestError(
            f"--architecture {model_type}: not available for GGUF{format_suggestion(model_type, GGUF_ARCHITECTURES)} "
            f"(architectures: {', '.join(GGUF_ARCHITECTURES)})"
        )
    mismatches = []
    for candidate in GGUF_ARCHITECTURES if model_type is None else (model_type,):
        try:
            architecture, structure, fields = find_architecture(model, candidate)
            transformers_model = convert_to_transformers(model, architecture, structure, fields)
            _check_required_fields(transformers_model.config)
        except NoMatchError as error:
            mismatches.append(str(error).splitlines()[-1].strip())
        else:
            return transformers_model
    raise NoMatchError("no architecture of llama.cpp has the parts of this model:\n  " + "\n  ".join(mismatches))


def _check_required_fields(config: Any) -> None:
    """Raise NoMatchError if llama.cpp would compute something else from the GGUF file than the configuration says."""
    for name, allowed_values in GGUF_ARCHITECTURES[config.model_type].required.items():
        if getattr(config, name) not in allowed_values:
            raise NoMatchError(
                f"{config.model_type}: llama.cpp supports {name} = {' or '.join(map(repr, allowed_values))} only, "
                f"not {getattr(config, name)!r}"
            )


def write_gguf_file(transformers_model: Any, tokenizer: CorpusTokenizer | None, path: Path) -> None:
    """Write a transformers model of one of `GGUF_ARCHITECTURES` as a GGUF file in float32."""
    import gguf

    config = transformers_model.config
    writer = gguf.GGUFWriter(path, config.model_type)
    _add_sizes(writer, config)
    _add_tokenizer(writer, tokenizer)
    for name, tensor in _list_gguf_tensors(transformers_model).items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_sizes(writer: Any, config: Any) -> None:
    """Add the sizes of the model to the metadata of a GGUF file."""
    num_heads = config.num_attention_heads
    writer.add_file_type(FLOAT32_FILE_TYPE)
    writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(num_heads)
    if config.model_type == "gpt2":
        writer.add_feed_forward_length(config.n_inner or 4 * config.hidden_size)
        writer.add_layer_norm_eps(config.layer_norm_epsilon)
        return
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // num_heads
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])


def _add_tokenizer(writer: Any, tokenizer: CorpusTokenizer | None) -> None:
    """Add a byte-level BPE tokenizer to the metadata of a GGUF file; any other is declared as absent."""
    if tokenizer is None or tokenizer.kind != "bpe":
        writer.add_tokenizer_model("none")
        return
    model = json.loads(tokenizer.backend.to_str())["model"]
    tokens = [tokenizer.id_to_token(token_id) for token_id in range(tokenizer.vocab_size)]
    special_ids = {
        "pad": tokenizer.pad_id,
        "bos": tokenizer.bos_id,
        "eos": tokenizer.eos_id,
        "mask": tokenizer.mask_id,
    }
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([CONTROL_TOKEN if i in special_ids.values() else NORMAL_TOKEN for i in range(len(tokens))])
    writer.add_token_merges([" ".join(merge) if isinstance(merge, list) else merge for merge in model["merges"]])
    for name, token_id in special_ids.items():
        if token_id is not None:
            getattr(writer, f"add_{name}_token_id")(token_id)


def _list_gguf_tensors(transformers_model: Any) -> dict[str, np.ndarray[Any, Any]]:
    """Return the tensors of a transformers model under their names and in the layout of GGUF."""
    import gguf

    config, architecture = transformers_model.config, GGUF_ARCHITECTURES[transformers_model.config.model_type]
    architecture_ids = {name: key for key, name in gguf.MODEL_ARCH_NAMES.items()}
    name_map = gguf.get_tensor_name_map(architecture_ids[config.model_type], config.num_hidden_layers)
    tensors = {}
    for name, tensor in transformers_model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        array = tensor.detach().to(torch.float32).numpy()
        if name.endswith(architecture.transposed):
            array = array.T
        if architecture.has_interleaved_rope and ".q_proj." in name:
            array = _interleave_rope(array, config.num_attention_heads)
        if architecture.has_interleaved_rope and ".k_proj." in name:
            array = _interleave_rope(array, config.num_key_value_heads)
        gguf_name = name_map.get_name(name, try_suffixes=(".weight", ".bias"))
        assert gguf_name is not None, name
        tensors[gguf_name] = np.ascontiguousarray(array)
    return tensors


def _interleave_rope(array: np.ndarray[Any, Any], num_heads: int) -> np.ndarray[Any, Any]:
    """Return the rows of a query or key matrix, (heads * head_dim, ...), in the order of interleaved rotation."""
    halves = array.reshape(num_heads, 2, len(array) // num_heads // 2, *array.shape[1:])
    return halves.swapaxes(1, 2).reshape(array.shape)


def _load_gguf_file(transformers: Any, folder: Path, config: Any) -> Any:
    """Return the model in a GGUF file, as transformers reads it."""
    read_config = transformers.AutoConfig.from_pretrained(folder, gguf_file=MODEL_FILE)
    for name in OVERRIDDEN_FIELDS & config.to_dict().keys():
        setattr(read_config, name, getattr(config, name))
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, gguf_file=MODEL_FILE, config=read_config, dtype=torch.float32
    )
    return model.eval()
