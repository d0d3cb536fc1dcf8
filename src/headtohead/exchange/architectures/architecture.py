"""One entry of the table of architectures: how a transformers configuration and its tensors correspond to parts.

Every entry is used in both directions. `read_structure` refuses a configuration with a field that has no match.
`write_config` is checked by reading its result again, so it cannot describe a different model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from headtohead.errors import ModelError
from headtohead.exchange.architectures.tensor_rules import TensorRule
from headtohead.exchange.model_structure import ModelStructure

Config = Mapping[str, Any]
"""a transformers configuration: values by field name"""
ConfigFields = dict[str, Any]
"""some fields of a transformers configuration"""
StructureFields = dict[str, Any]
"""some fields of a `ModelStructure`"""

# Fields that do not change what a model computes at inference: identity, token ids, initialization, training,
# generation, and heads other than those that are exchanged.
IGNORED_FIELDS = frozenset(
    """transformers_version architectures output_hidden_states return_dict dtype torch_dtype id2label label2id
    problem_type _name_or_path model_type output_attentions _attn_implementation attn_implementation use_cache
    initializer_range initializer_factor pad_token_id bos_token_id eos_token_id cls_token_id sep_token_id
    decoder_start_token_id classifier_dropout attention_dropout attention_probs_dropout_prob hidden_dropout_prob
    hidden_dropout resid_pdrop embd_pdrop attn_pdrop emb_pdrop dropout dropout_rate embedding_dropout mlp_dropout
    pretraining_tp gradient_checkpointing torchscript pruned_heads finetuning_task task_specific_params
    chunk_size_feed_forward""".split()
)


class NoMatchError(ModelError):
    """Raised if a model has a property that an architecture of transformers or the parts cannot express."""


@dataclass(frozen=True)
class FieldGroup:
    """Configuration fields of transformers, and the fields of the structure that they determine.

    Args:
        names: Names of the configuration fields.
        read: Returns fields of the structure from a configuration. Raises NoMatchError for unsupported values.
        write: Returns the configuration fields for a structure.
    """

    names: tuple[str, ...]
    read: Callable[[Config], StructureFields]
    write: Callable[[ModelStructure], ConfigFields]


@dataclass(frozen=True)
class Architecture:
    """An architecture of transformers."""

    model_type: str
    title: str
    field_groups: Sequence[FieldGroup]
    list_tensor_rules: Callable[[ModelStructure], Sequence[TensorRule]]
    fixed_structure: StructureFields = field(default_factory=dict)
    """fields of the structure that no configuration field changes, where they differ from the defaults"""
    required_fields: ConfigFields = field(default_factory=dict)
    """configuration fields of which a single value has a match in the parts"""
    ignored_fields: frozenset[str] = frozenset()
    """configuration fields that do not change what the model computes, in addition to `IGNORED_FIELDS`"""
    unused_tensors: tuple[str, ...] = ()
    """patterns of tensors of transformers that do not take part in the computation"""
    base_prefix: str = ""
    """prefix of the base model's tensors in a model with a head"""
    build_extra_fields: Callable[[ModelStructure], ConfigFields] = lambda _: {}
    """returns configuration fields that are written, but not read"""

    def read_structure(self, config: Config, defaults: Config, *, output_head: str | None = None) -> ModelStructure:
        """Return the structure that a transformers configuration describes.

        Args:
            config: All fields of the configuration.
            defaults: The fields that its class defines, with their default values.
            output_head: "none" for a model without an output layer; None for the usual one.
        """
        self._check_fields(config, defaults)
        structure_fields = dict(self.fixed_structure)
        for group in self.field_groups:
            structure_fields |= group.read(config)
        if output_head is not None:
            structure_fields |= {"output_head": output_head, "output_bias": False, "tie_word_embeddings": False}
        return ModelStructure(**structure_fields)

    def _check_fields(self, config: Config, defaults: Config) -> None:
        """Raise NoMatchError if a field of a transformers configuration has a value without a match in the parts."""
        read_names = {name for group in self.field_groups for name in group.names}
        for name, allowed in self.required_fields.items():
            if config.get(name, allowed) != allowed:
                raise NoMatchError(
                    f"{self.model_type}: {name} = {config[name]!r} has no match (supported: {allowed!r})"
                )
        for name, value in config.items():
            is_known = (
                name in read_names or name in self.required_fields or name in IGNORED_FIELDS | self.ignored_fields
            )
            if not is_known and name in defaults and value != defaults[name]:
                raise NoMatchError(f"{self.model_type}: {name} = {value!r} has no match")
        quantization = config.get("quantization_config") or {}
        if quantization and quantization.get("quant_method") != "gguf":  # GGUF files are dequantized when loaded
            raise NoMatchError(f"{self.model_type}: quantization_config has no match; use unquantized weights")
        if config.get("per_layer_config"):
            raise NoMatchError(f"{self.model_type}: per_layer_config has no match")

    def write_config(self, structure: ModelStructure) -> ConfigFields:
        """Return the configuration fields of this architecture with the given structure.

        Raise NoMatchError with the first property that the architecture does not have.
        """
        config: ConfigFields = dict(self.required_fields)
        for group in self.field_groups:
            config |= group.write(structure)
        reread = self.read_structure(config, {}, output_head="none" if structure.output_head == "none" else None)
        for attribute in fields(ModelStructure):
            name = attribute.name
            if name == "context" and structure.position != "learned":
                continue
            if structure.output_head == "none" and name.startswith("mlm_head_"):
                continue
            expected, written = getattr(structure, name), getattr(reread, name)
            if expected != written:
                raise NoMatchError(f"{self.model_type} has {name} = {written!r}, but the model has {expected!r}")
        return config | self.build_extra_fields(structure)
