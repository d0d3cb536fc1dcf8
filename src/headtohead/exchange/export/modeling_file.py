"""Write a model of parts with its own modeling file, for models that no architecture of transformers expresses."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import Tensor

from headtohead.atomic_io import compute_sha256
from headtohead.config.base import ComponentConfig
from headtohead.config.tables.model import LayerSlot, TransformerConfig
from headtohead.json_files import write_json
from headtohead.nn.parts import registry
from headtohead.nn.transformer import Transformer
from headtohead.training.tensor_files import write_safetensors

MODULE_NAME = "modeling_headtohead"


def write_with_modeling_file(
    model: Transformer, folder: Path, label_names: tuple[str, ...], special_token_ids: dict[str, Any]
) -> None:
    """Write config.json, the modeling file and the weights of a model of parts."""
    from headtohead.exchange.export import modeling_template, source_bundler

    folder.mkdir(parents=True, exist_ok=True)
    parts_plan, part_classes = build_parts_plan(model)
    if model.num_classes is not None:
        auto_class = "AutoModelForSequenceClassification"
    else:
        auto_class = "AutoModelForCausalLM" if model.is_causal else "AutoModelForMaskedLM"
    model_reference = f"{MODULE_NAME}.HeadToHeadModel"
    config = {
        "model_type": modeling_template.HeadToHeadConfig.model_type,
        "architectures": ["HeadToHeadModel"],
        "auto_map": {"AutoConfig": f"{MODULE_NAME}.HeadToHeadConfig", auto_class: model_reference},
        "vocab_size": model.sizes.vocab_size,
        "hidden_size": model.sizes.width,
        "num_hidden_layers": model.sizes.layers,
        "num_attention_heads": model.sizes.heads,
        "max_position_embeddings": model.context,
        "tie_word_embeddings": False,  # a shared matrix is stored twice
        "use_cache": False,
        "plan": parts_plan,
        **special_token_ids,
    }
    if model.num_classes is not None:
        config["id2label"] = {str(index): name for index, name in enumerate(label_names)}
        config["label2id"] = {name: index for index, name in enumerate(label_names)}
    write_json(folder / "config.json", config)
    source_bundler.write_bundle(folder / f"{MODULE_NAME}.py", part_classes, modeling_template)
    write_safetensors(folder / "model.safetensors", collect_tensors_to_export(model), {"format": "pt"})


def load_with_modeling_file(folder: Path) -> Any:
    """Return the model in a folder that `write_with_modeling_file` wrote. Runs its modeling file."""
    path = folder / f"{MODULE_NAME}.py"
    spec = importlib.util.spec_from_file_location(f"{MODULE_NAME}_{compute_sha256(path)[:12]}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look up their module
    spec.loader.exec_module(module)
    return module.HeadToHeadModel.from_pretrained(folder).eval()


def collect_tensors_to_export(model: Transformer) -> dict[str, Tensor]:
    """Return the tensors that a modeling file loads: parameters and all buffers, under each of their names.

    Buffers that transformers does not save, such as tables of RoPE, are included.
    """
    parameters = dict(model.named_parameters(remove_duplicate=False))
    buffers = dict(model.named_buffers(remove_duplicate=False))
    buffer_names = sorted(name for name in buffers if not name.startswith("layer_builder."))
    return {name: tensor.detach().clone() for name, tensor in parameters.items()} | {
        name: buffers[name].detach().clone() for name in buffer_names
    }


def build_parts_plan(model: Transformer) -> tuple[dict[str, Any], list[type]]:
    """Return the plan that a modeling file builds a model from, as JSON data for config.json, and the part classes."""
    config = model.model_config
    part_classes: dict[str, type] = {}

    def describe_part(slot: str, part: ComponentConfig) -> list[Any]:
        part_class = registry.get_part_class(slot, part.kind)
        part_classes[part_class.__name__] = part_class
        return [part_class.__name__, part.options]

    position_indices: dict[tuple[ComponentConfig, int], int] = {}
    layers = [
        _plan_layer(config, index, model.is_causal, position_indices, describe_part) for index in range(config.layers)
    ]
    parts_plan: dict[str, Any] = {
        "sizes": asdict(model.sizes),
        "embedding_width": config.embedding_width,
        "embedding": [describe_part("embedding", part) for part in config.embedding],
        "positions": [describe_part("position", part) for part, _ in position_indices],
        "norm": describe_part("norm", config.norm),
        "embedding_norm": config.embedding_norm,
        "final_norm": config.final_norm,
        "layers": layers,
        "stack": describe_part("stack", config.stack),
        "mask_padding": config.mask_padding,
        "num_classes": model.num_classes,
    }
    if model.num_classes is None:
        parts_plan["output"] = [describe_part("output", part) for part in config.output]
    else:
        parts_plan["pool"] = describe_part("pool", config.pool)
        parts_plan |= {key: getattr(config, key) for key in ("classifier_hidden", "classifier_activation")}
    return parts_plan, list(part_classes.values())


def _plan_layer(
    config: TransformerConfig,
    layer_index: int,
    is_causal: bool,
    position_indices: dict[tuple[ComponentConfig, int], int],
    describe_part: Callable[[str, ComponentConfig], list[Any]],
) -> dict[str, Any]:
    """Return a layer's entry in the plan of a modeling file. Number its position parts, which layers share."""
    slots: tuple[LayerSlot, ...] = ("projection", "merge", "attention", "feedforward", "block")
    layer_parts: dict[str, Any] = {
        slot: [describe_part(slot, part) for part in config.get_layer_parts(slot, layer_index)] for slot in slots
    }
    plan = {**layer_parts, **{slot: layer_parts[slot][0] for slot in ("attention", "feedforward", "block")}}
    default_pattern = (ComponentConfig(kind="causal" if is_causal else "full"),)
    patterns = config.get_layer_parts("pattern", layer_index) or default_pattern
    plan["pattern"] = [describe_part("pattern", part) for part in patterns]
    positions = config.get_layer_parts("position", layer_index)
    # Equal parts in one layer are different modules.
    keys = [(part, positions[:place].count(part)) for place, part in enumerate(positions)]
    plan["positions"] = [position_indices.setdefault(key, len(position_indices)) for key in keys]
    return plan
