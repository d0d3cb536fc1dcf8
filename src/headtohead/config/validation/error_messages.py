"""Convert pydantic errors to issues with location, given value, allowed values and a suggestion."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel

from headtohead.config.base import ComponentConfig
from headtohead.config.experiment import Experiment
from headtohead.config.tables.data import DataConfig
from headtohead.config.tables.model import CustomModelConfig, PretrainedModelConfig, TransformerConfig
from headtohead.config.tables.training import TrainingConfig
from headtohead.errors import ValidationIssue, suggest

# Tags of the unions in experiment files, which pydantic includes in the locations of errors.
UNION_TAGS = {"values", "range", "parts", "own", "encoder", "named", "each layer", "all layers"}
MODEL_CONFIGS_BY_TAG: dict[str, type[BaseModel]] = {
    "parts": TransformerConfig,
    "own": CustomModelConfig,
    "encoder": PretrainedModelConfig,
}
RENAMED_KEYS = {
    "about": "description",
    "claims.against": "claims.baseline",
    "claims.expects": "claims.expected_verdict",
    "claims.says": "claims.statement",
    "claims.why": "claims.explanation",
    "comparisons.says": "comparisons.description",
    "data.once": "data.rare_words",
    "data.tokens": "data.tokenizer",
    "data.unknown": "data.word_dropout",
    "data.validation": "data.validation_fraction",
    "data.watch": "data.monitor",
    "matters": "equivalence_margin",
    "model.embedding_start": "model.embedding.std",
    "model.fewer": "model.layer_subset",
    "model.lora.on": "model.lora.target_modules",
    "model.output_start": "model.output.init",
    "model.tied": "model.tie_word_embeddings",
    "search.prune.after": "search.prune.min_seeds",
    "taught": "conclusions",
    "teacher.begin": "teacher.prompt_tokens",
    "teacher.chat": "teacher.use_chat_template",
    "teacher.claims.against": "teacher.claims.reference",
    "teacher.claims.expects": "teacher.claims.expected_verdict",
    "teacher.claims.measure": "teacher.claims.metric",
    "teacher.claims.says": "teacher.claims.statement",
    "teacher.claims.who": "teacher.claims.model",
    "teacher.claims.why": "teacher.claims.explanation",
    "teacher.reported": "teacher.published",
    "training.batch": "training.batch_size",
    "training.batching": "training.order",
    "training.sampling": "training.order",
    "training.best_by": "training.metric_for_best_model",
    "training.checkpoint": "training.checkpoint_every",
    "training.clip": "training.max_grad_norm",
    "training.evaluate": "training.eval_every",
    "training.keep": "training.load_best_model_at_end",
    "training.stop": "training.early_stopping",
    "training.distillation.by": "training.distillation.targets",
    "training.distillation.top": "training.distillation.top_k",
    "training.taught": "training.distillation",
    "use": "plugins",
}
"""keys of version 0.1 = their new names, used in error messages only"""
SYNONYMS = {
    "model.heads": "n_head n_heads num_heads num_attention_heads nhead attention_heads",
    "model.layers": "n_layer n_layers num_layers num_hidden_layers depth",
    "model.width": "n_embd d_model hidden_size embedding_dim embed_dim dim",
    "model.context": "block_size seq_len seq_length sequence_length max_seq_len context_length n_ctx n_positions",
    "model.position": "positions positional_encoding position_encoding pos_emb position_embedding",
    "model.feedforward": "mlp ffn feed_forward",
    "model.feedforward.hidden": "d_ff ffn_dim intermediate_size mlp_ratio",
    "model.norm": "normalization layer_norm",
    "model.dropout": "dropout_rate p_dropout attn_dropout resid_dropout",
    "model.tie_word_embeddings": "tie_weights weight_tying tied_embeddings",
    "training.optimizer.lr": "lr rate learning_rate max_lr",
    "training.optimizer.weight_decay": "weight_decay wd",
    "training.optimizer.betas": "betas adam_betas",
    "training.schedule.warmup": "warmup warmup_steps warmup_iters",
    "training.budget": "steps epochs num_epochs num_train_epochs n_epochs max_steps num_steps iterations max_iters",
    "training.batch_size": "bs train_batch_size per_device_train_batch_size micro_batch_size",
    "training.max_grad_norm": "grad_clip clip_grad gradient_clipping clip_grad_norm",
    "training.eval_every": "eval_steps eval_interval evaluation_interval",
    "training.schedule": "lr_scheduler scheduler lr_schedule lr_scheduler_type",
    "data.source": "dataset corpus path data_dir",
    "data.tokenizer.vocab_size": "vocab_size vocabulary_size",
    "seeds": "seed num_seeds n_seeds random_seed repeats",
    "equivalence_margin": "margin tolerance",
}
"""key = names of the same setting in other libraries"""
_KEY_BY_SYNONYM = {synonym: key for key, synonyms in SYNONYMS.items() for synonym in synonyms.split()}
TYPE_DESCRIPTIONS = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "text",
    "dict_type": "a table",
    "model_type": "a table",
    "model_attributes_type": "a table",
    "tuple_type": "a list",
}


def convert_pydantic_error(error: Any) -> ValidationIssue:
    """Convert one entry of `ValidationError.errors()` to a `ValidationIssue`."""
    keys = [str(key) for key in error["loc"] if str(key) not in UNION_TAGS]
    # For a union of plain types, pydantic appends the name of the type to the location.
    location = ".".join(key for key in keys if not re.search(r"constrained-|^(int|str|literal\[|function-)", key))
    error_type, value, context = error["type"], error["input"], error.get("ctx", {})
    if error_type == "extra_forbidden":
        allowed_values = _get_allowed_keys(
            keys[:-1], next((MODEL_CONFIGS_BY_TAG[tag] for tag in error["loc"] if tag in MODEL_CONFIGS_BY_TAG), None)
        )
        key = re.sub(r"^variants\.[^.]+\.|\.\d+", "", location)
        if new_key := RENAMED_KEYS.get(key) or RENAMED_KEYS.get(key.removeprefix("teacher.")):
            return ValidationIssue(location, f"was written for version 0.1; the key is now {new_key!r}")
        return ValidationIssue(
            location, "unknown key", allowed_values, suggest_key(keys[-1], allowed_values, key.rpartition(".")[0])
        )
    if error_type == "missing":
        return ValidationIssue(location, "is missing")
    if error_type == "literal_error":
        allowed_values = tuple(re.findall(r"'([^']*)'", context.get("expected", "")))
        return ValidationIssue(location, f"cannot be {value!r}", allowed_values, suggest(str(value), allowed_values))
    if error_type in TYPE_DESCRIPTIONS:
        return ValidationIssue(location, f"must be {TYPE_DESCRIPTIONS[error_type]}, not {_describe_toml_value(value)}")
    if error_type == "value_error":
        return ValidationIssue(location, str(context.get("error", error["msg"])))
    if error_type == "string_pattern_mismatch":
        examples = {
            "seeds": '5, "auto" or "auto up to 20"',
            "module": "file.py:Name",
            "eval_every": '100 or "1 epoch"',
            "checkpoint_every": '100 or "1 epoch"',
        }
        example = examples.get(location.rpartition(".")[2], context["pattern"])
        return ValidationIssue(location, f"cannot be {value!r}; it looks like {example}")
    bounds = {"greater_than": ">", "greater_than_equal": ">=", "less_than": "<", "less_than_equal": "<="}
    if error_type in bounds:
        bound = next(iter(value for name, value in context.items() if name in {"gt", "ge", "lt", "le"}))
        return ValidationIssue(location, f"must be {bounds[error_type]} {bound}, not {value!r}")
    return ValidationIssue(location, f"{error['msg'].lower()}, not {_describe_toml_value(value)}")


def suggest_key(key: str, allowed_keys: Sequence[str], table_name: str) -> str | None:
    """Return the key that an error message suggests for an unknown one: a synonym, or a similar key of any table."""
    synonym = _KEY_BY_SYNONYM.get(key.lower().replace("-", "_"))
    if synonym is not None:
        return synonym.rpartition(".")[2] if synonym.rpartition(".")[2] in allowed_keys else synonym
    tables: dict[str, type[BaseModel]] = {
        "data": DataConfig,
        "model": TransformerConfig,
        "training": TrainingConfig,
    }
    dotted_keys = [
        f"{name}.{key}" for name, table in tables.items() if name != table_name and key in table.model_fields
    ]
    return dotted_keys[0] if dotted_keys else suggest(key, allowed_keys)


def _describe_toml_value(value: object) -> str:
    """Return an invalid value with the name of its TOML type: "the text '5'"."""
    type_names = {str: "text", bool: "true or false", int: "number", float: "number", list: "list", dict: "table"}
    return f"the {type_names.get(type(value), type(value).__name__)} {value!r}"


def _get_allowed_keys(table_path: Sequence[str], model_class: type[BaseModel] | None) -> tuple[str, ...]:
    """Return the keys of a table for an error message that lists the allowed ones; () if they are not known.

    `model_class` is the config class of the [model] table, if it is known.
    """
    table: type[BaseModel] = Experiment
    for key in table_path:
        if key == "model" and model_class is not None:
            table = model_class
            continue
        annotation = table.model_fields[key].annotation if key in table.model_fields else None
        config_classes = [
            config_class for config_class in _find_config_classes(annotation) if config_class is not ComponentConfig
        ]
        if not config_classes:
            return ()
        table = config_classes[0]
    return tuple(table.model_fields)


def _find_config_classes(annotation: Any) -> list[type[BaseModel]]:
    """Return the pydantic models in a type annotation, whose fields an error message may list."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [
        config_class
        for argument in getattr(annotation, "__args__", ())
        for config_class in _find_config_classes(argument)
    ]
