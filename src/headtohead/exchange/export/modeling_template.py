"""A transformer of parts as a model of transformers that does not need this package.

This file is a template. `headtohead.exchange.export.source_bundler` writes it, together with the parts that a model
uses, into the folder of an exported model; `config.plan` lists these parts."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor, nn
from transformers import GenerationMixin, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

from headtohead.nn.layer import TransformerLayer
from headtohead.nn.parts.attention import AttentionParts
from headtohead.nn.parts.base import ModelSizes, Part
from headtohead.nn.parts.context import ForwardContext
from headtohead.nn.parts.norm import NoNorm
from headtohead.nn.parts.registry import build_step_modules

ACTIVATION_CLASSES = {"relu": nn.ReLU, "tanh": nn.Tanh, "gelu": nn.GELU}


class HeadToHeadConfig(PreTrainedConfig):  # type: ignore[misc]
    """Configuration of an exported model. `plan` holds its sizes, and the class and options of each part."""

    model_type = "headtohead-parts"
    plan: Any = None


def build_planned_part(part: list[Any], *arguments: Any) -> Any:
    """Return a part, given [class name, options]."""
    class_name, options = part
    return globals()[class_name](*arguments, **options)


class HeadToHeadModel(PreTrainedModel, GenerationMixin):  # type: ignore[misc]
    """A language model, masked language model or classifier."""

    config_class = HeadToHeadConfig
    _supports_sdpa = True

    def __init__(self, config: Any) -> None:
        """Build the model from the parts that `config.plan` lists."""
        super().__init__(config)
        plan: dict[str, Any] = config.plan
        sizes = ModelSizes(**plan["sizes"])
        embedding_sizes = sizes if plan["embedding_width"] is None else replace(sizes, width=plan["embedding_width"])
        self.is_padding_masked = plan["mask_padding"]
        self.embedding, *steps = [build_planned_part(part, embedding_sizes) for part in plan["embedding"]]
        self.embedding_steps = build_step_modules(steps)
        self.positions = nn.ModuleList(build_planned_part(part, embedding_sizes) for part in plan["positions"])
        self.embedding_norm = (
            build_planned_part(plan["norm"], embedding_sizes) if plan["embedding_norm"] else NoNorm(sizes)
        )
        self.embedding_projection = (
            nn.Identity() if plan["embedding_width"] is None else nn.Linear(embedding_sizes.width, sizes.width)
        )
        self.layers = nn.ModuleList(
            self._build_layer(layer, plan["norm"], replace(sizes, layer_index=index))
            for index, layer in enumerate(plan["layers"])
        )
        self.stack = build_planned_part(plan["stack"], sizes)
        self.final_norm = build_planned_part(plan["norm"], sizes) if plan["final_norm"] else NoNorm(sizes)
        if plan["num_classes"] is None:
            output, *steps = plan["output"]
            self.output = build_planned_part(output, sizes, self.embedding)
            self.output_steps = build_step_modules([build_planned_part(part, sizes) for part in steps])
        else:
            self.pool = build_planned_part(plan["pool"], sizes)
            self.classifier = self._build_classifier(plan, sizes.width)
        supported_implementations = [part.attn_implementations for part in self.modules() if isinstance(part, Part)]
        self.attention_kind: Any = "sdpa" if all("sdpa" in names for names in supported_implementations) else "eager"
        for module in self.modules():
            module._non_persistent_buffers_set.clear()  # computed tables are in the file of weights as well
        self.post_init()

    def _build_layer(self, plan: dict[str, Any], norm: list[Any], sizes: ModelSizes) -> TransformerLayer:
        """Return a layer with the parts that its plan lists."""
        projection, *steps = plan["projection"]
        first_projection = build_planned_part(projection, sizes)
        step_sizes = replace(sizes, key_heads=first_projection.key_heads)
        pattern, *patterns = [build_planned_part(part, replace(sizes, layer_index=None)) for part in plan["pattern"]]
        for additional_pattern in patterns:
            pattern = pattern & additional_pattern
        parts = AttentionParts(
            first_projection,
            [build_planned_part(part, step_sizes) for part in steps],
            pattern,
            [build_planned_part(part, sizes) for part in plan["merge"]],
            [self.positions[index] for index in plan["positions"]],
        )
        feedforward = build_planned_part(plan["feedforward"], sizes)
        block = build_planned_part(
            plan["block"], sizes, partial(build_planned_part, norm, sizes), not feedforward.is_absent
        )
        return TransformerLayer(block, build_planned_part(plan["attention"], sizes, parts), feedforward)

    def _build_classifier(self, plan: dict[str, Any], width: int) -> nn.Module:
        """Return the classification head of the exported model."""
        hidden = plan["classifier_hidden"]
        if hidden is None:
            return nn.Linear(width, plan["num_classes"])
        activation = ACTIVATION_CLASSES[plan["classifier_activation"]]()
        return nn.Sequential(nn.Linear(width, hidden), activation, nn.Linear(hidden, plan["num_classes"]))

    def _init_weights(self, module: nn.Module) -> None:
        """Do nothing: every tensor is in the file of weights."""

    def prepare_inputs_for_generation(self, input_ids: Tensor, attention_mask: Any = None, **_: Any) -> dict[str, Any]:
        """Return the inputs of a decoding step, which processes the whole sequence."""
        return {"input_ids": input_ids, "attention_mask": attention_mask}

    def forward(self, input_ids: Tensor, attention_mask: Any = None, labels: Any = None, **_: Any) -> CausalLMOutput:
        """Return the logits, and the loss if labels are given."""
        mask = attention_mask.bool() if attention_mask is not None and self.is_padding_masked else None
        has_padding = mask is not None and not bool(mask.all())
        context = ForwardContext.create(
            input_ids, mask if has_padding else None, layer_index=-1, is_training=self.training
        )
        context.num_layers, context.attn_implementation = self.stack.depth, self.attention_kind
        x = self.embedding(input_ids, context)
        for step in self.embedding_steps.values():
            x = step(x, context)
        for part in self.positions:
            x = part.add_positions(x, context)  # type: ignore[operator]
        x = self.embedding_projection(self.embedding_norm(x, context))
        x = self.stack(x, [partial(run_layer, layer) for layer in self.layers], context)
        context.enter_layer(max(context.layer_index + 1, context.num_layers))
        x = self.final_norm(x, context)
        if self.config.plan["num_classes"] is not None:
            logits = self.classifier(self.pool(x, context))
            loss = None if labels is None else nn.functional.cross_entropy(logits, labels)
            return CausalLMOutput(loss=loss, logits=logits)
        logits = self.output(x, context)
        for step in self.output_steps.values():
            logits = step(logits, x, context)
        loss = None
        if labels is not None:
            is_causal = self.config.plan["sizes"]["is_causal"]
            predictions, targets = (logits[:, :-1], labels[:, 1:]) if is_causal else (logits, labels)
            loss = nn.functional.cross_entropy(predictions.flatten(0, 1), targets.flatten())
        return CausalLMOutput(loss=loss, logits=logits)


def run_layer(layer: nn.Module, x: Tensor, context: ForwardContext) -> Tensor:
    """Return the output of a layer, as the next one of the forward pass."""
    output: Tensor = layer(x, context, context.layer_index + 1)
    return output
