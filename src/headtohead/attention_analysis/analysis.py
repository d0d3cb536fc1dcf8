"""Python interface to attention analysis: a model's maps for a text, with head metrics and checks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from headtohead.attention_analysis import head_metrics, page, svg
from headtohead.attention_analysis.figure import AttentionFigure
from headtohead.attention_analysis.map_checks import AttentionCheck, check_attention_maps
from headtohead.attention_analysis.map_images import WeightArray
from headtohead.attention_analysis.maps import (
    AttentionMaps,
    compute_attention_maps,
    encode_text,
    select_heads,
    subtract_maps,
)
from headtohead.config.tables import model
from headtohead.config.tasks import Target
from headtohead.errors import ModelError
from headtohead.experiment.schemas import HeadMeasures
from headtohead.pretrained.tokenizer import PretrainedTokenizer
from headtohead.saved_models import inference, model_io
from headtohead.saved_models.model_io import SavedModel
from headtohead.saved_models.open_model import ModelBundle, open_model

MAX_PADDED_LENGTH = 4096
"""longest context length to which a text is padded, in tokens"""
BEFORE_TRAINING = "before training"
AFTER_TRAINING = "after training"


@dataclass(frozen=True, eq=False)
class AttentionAnalysis(AttentionFigure):
    """Attention on one text: one model, a model before and after training, or two models and their difference.

    Displays itself in a notebook. Layers and heads are counted from 1 in text and metrics, from 0 in arrays.
    """

    @property
    def analyzed_maps(self) -> AttentionMaps:
        """The maps of the analyzed model, after training."""
        return self.panels[1] if self.panels[0].name == BEFORE_TRAINING else self.panels[0]

    @property
    def maps(self) -> tuple[WeightArray, ...]:
        """One array of shape (heads, query, key) per layer."""
        return self.analyzed_maps.weights_by_layer

    @property
    def measures(self) -> Sequence[HeadMeasures]:
        """The metrics of every head."""
        return self.metrics_by_panel[self.analyzed_maps.name]

    @property
    def checks(self) -> Sequence[AttentionCheck]:
        return self.checks_by_panel[self.analyzed_maps.name]

    def save(self, path: str | Path) -> Path:
        """Save the analysis as a page (.html) or a picture (.svg, .pdf, .png)."""
        return svg.save_figure(self, path)

    def to_dict(self) -> dict[str, Any]:
        """Return the analysis as JSON values."""
        return {
            "title": self.title,
            "text": self.text,
            "tokens": list(self.tokens),
            "padding": int((~self.attention_mask).sum()),
            "notes": list(self.notes),
            "panels": [
                {
                    "name": name,
                    "measures": [{**head.model_dump(exclude_unset=True), "copies": head.copies} for head in heads],
                    "checks": [asdict(check) for check in self.checks_by_panel[name]],
                }
                for name, heads in self.metrics_by_panel.items()
            ],
        }

    def _repr_html_(self) -> str:
        return page.render_fragment(self)

    def __repr__(self) -> str:
        return f"<attention of {self.title}: {len(self.tokens)} tokens, {self.analyzed_maps.shape}>"


def analyze_attention(
    model: str | Path | ModelBundle,
    text: str,
    *,
    before_training: bool = False,
    compare_to: str | Path | ModelBundle | None = None,
    layer: int | None = None,
    head: int | None = None,
    pad: bool | None = None,
    ablate_heads: bool = False,
) -> AttentionAnalysis:
    """Analyze the attention of a model (a run folder or a pretrained model) on a text.

    Args:
        before_training: Also show a run's model before training.
        compare_to: A second model; also show the difference.
        layer, head: Restrict the analysis, counted from 1.
        pad: Show the text padded to the context length. By default a classifier is shown with a strip of padding.
        ablate_heads: Measure how much this text's loss increases when each head is ablated.
    """
    if before_training and compare_to is not None:
        raise ModelError("before_training and compare_to are mutually exclusive")
    bundle = _resolve_model(model)
    named_bundles: list[tuple[str, ModelBundle]] = [(_format_model_name(bundle), bundle)]
    if before_training:
        named_bundles = [(BEFORE_TRAINING, _load_initial_model(bundle)), (AFTER_TRAINING, bundle)]
    elif compare_to is not None:
        second_bundle = _resolve_model(compare_to)
        model_names = [_format_model_name(bundle), _format_model_name(second_bundle)]
        if model_names[0] == model_names[1]:
            model_names = [bundle.name, second_bundle.name]
        if model_names[0] == model_names[1]:
            raise ModelError(f"{model_names[0]}: both models are the same; there is no difference to show")
        named_bundles = list(zip(model_names, (bundle, second_bundle), strict=True))
    panels = [
        select_heads(_compute_text_maps(panel_bundle, text, name, pad), layer, head)
        for name, panel_bundle in named_bundles
    ]
    metrics_by_panel = {
        maps.name: _compute_head_metrics(panel_bundle, maps, ablate_heads)
        for maps, (_, panel_bundle) in zip(panels, named_bundles, strict=True)
    }
    checks_by_panel = {maps.name: check_attention_maps(maps) for maps in panels}
    if compare_to is not None:
        panels.append(subtract_maps(*panels))
    title = " and ".join(name for name, _ in named_bundles) if compare_to is not None else _format_model_name(bundle)
    return AttentionAnalysis(title, tuple(panels), metrics_by_panel, checks_by_panel)


def _resolve_model(model: str | Path | ModelBundle) -> ModelBundle:
    """Return a loaded model, opening it if it is given as a name or path."""
    return open_model(model) if isinstance(model, str | Path) else model


def _format_model_name(bundle: ModelBundle) -> str:
    """Return "variant, seed 0", or the name of a pretrained model."""
    return f"{bundle.trial.variant}, seed {bundle.trial.seed}" if isinstance(bundle, SavedModel) else bundle.name


def _load_initial_model(bundle: ModelBundle) -> ModelBundle:
    """Return the model of a run folder with its weights before training."""
    if not isinstance(bundle, SavedModel):
        raise ModelError(f"{bundle.name}: the weights before training are only known for run folders")
    return model_io.load_saved_model(bundle.folder, use_initial_weights=True)


def _compute_text_maps(bundle: ModelBundle, text: str, name: str, pad: bool | None) -> AttentionMaps:
    """Encode the text to analyze with the model's special tokens and return its attention maps."""
    prefix_ids, suffix_ids = _find_special_token_ids(bundle, text)
    encoded = encode_text(bundle.tokenizer, text, bundle.model.context, prefix_ids=prefix_ids, suffix_ids=suffix_ids)
    return compute_attention_maps(
        bundle.model,
        encoded,
        name=name,
        is_causal=bundle.target.is_causal,
        pad_to=_choose_padded_length(bundle, len(encoded.input_ids), pad),
        pad_id=bundle.tokenizer.pad_id,
    )


def _choose_padded_length(bundle: ModelBundle, length: int, pad: bool | None) -> int | None:
    """Return the length to which an analyzed text is padded for its attention maps, or None for no padding.

    Unmasked padding is shown in full, because it changes the model's output.
    """
    context = bundle.model.context
    if pad and context > MAX_PADDED_LENGTH:
        raise ModelError(
            f"{bundle.name}: cannot show a text padded to {context:,} tokens; the limit is {MAX_PADDED_LENGTH:,}"
        )
    if pad is not None:
        return context if pad else None
    if not isinstance(bundle, SavedModel) or not bundle.target.is_class_label:
        return None
    if not isinstance(bundle.trial.model, model.TransformerConfig):
        return None
    length_with_padding_strip = length + max(2, length // 4)
    return min(context, length_with_padding_strip) if bundle.trial.model.mask_padding else context


def _find_special_token_ids(bundle: ModelBundle, text: str) -> tuple[Sequence[int], Sequence[int]]:
    """Return the special tokens with which the analyzed text is shown, (ids before it, ids after it)."""
    tokenizer = bundle.tokenizer
    if isinstance(bundle, SavedModel) and not isinstance(tokenizer, PretrainedTokenizer):
        # A language model trained on single rows reads the start token; the stop token is only predicted.
        has_start_token = bundle.target.is_causal and tokenizer.bos_id is not None and tokenizer.eos_id is not None
        return ([tokenizer.bos_id] if has_start_token and tokenizer.bos_id is not None else []), []
    assert isinstance(tokenizer, PretrainedTokenizer)
    if not bundle.target.is_causal:
        input_ids, text_ids = tokenizer.encode_with_special_tokens(text), tokenizer.encode(text)
        text_start = next(
            (start for start in range(len(input_ids)) if input_ids[start : start + len(text_ids)] == text_ids), 0
        )
        return input_ids[:text_start], input_ids[text_start + len(text_ids) :]
    return tokenizer.encode_with_start_token(""), []


def _compute_head_metrics(bundle: ModelBundle, maps: AttentionMaps, ablate_heads: bool) -> list[HeadMeasures]:
    """Return the metrics of every head for an analysis and, with `ablate_heads`, the loss increases by ablation."""
    heads = head_metrics.compute_text_head_metrics(maps)
    if maps.is_causal:
        heads = head_metrics.add_induction_scores(heads, bundle.model, bundle.model.context, bundle.tokenizer)
    if not ablate_heads:
        return heads
    compute_losses = _build_loss_function(bundle, torch.tensor([maps.input_ids]))
    loss_increases = head_metrics.compute_ablated_losses(bundle.model, heads, compute_losses) - compute_losses()
    return [
        head.model_copy(update={"rise": head_metrics.to_finite_or_none(float(increase.mean()))})
        for head, increase in zip(heads, loss_increases, strict=True)
    ]


def _build_loss_function(bundle: ModelBundle, input_ids: torch.Tensor) -> Callable[[], WeightArray]:
    """Return a function that computes the losses of the analyzed text while a head is ablated."""
    if bundle.target is Target.NONE:
        raise ModelError(f"{bundle.name}: an encoder without a task head has no loss; remove --ablate-heads")
    if bundle.target.is_causal and input_ids.shape[1] < 2:
        raise ModelError("a text of one token has no loss: no token is predicted")

    @torch.no_grad()
    def compute_losses() -> WeightArray:
        """Return the loss for each of the model's predictions on `input_ids`."""
        if bundle.target.is_causal:
            logits = bundle.model(input_ids).logits[0, :-1].float()
            return F.cross_entropy(logits, input_ids[0, 1:], reduction="none").numpy()
        if bundle.target is Target.MASKED_TOKEN:
            losses = inference.score_masked_tokens(bundle, input_ids[0].tolist())
            return np.array([loss for _, loss in losses], dtype=np.float32)
        return F.cross_entropy(_compute_class_logits(bundle, input_ids), predicted_class, reduction="none").numpy()

    with torch.no_grad():
        predicted_class = (
            _compute_class_logits(bundle, input_ids).argmax(-1) if bundle.target.is_class_label else input_ids[0, :1]
        )
    return compute_losses


def _compute_class_logits(bundle: ModelBundle, input_ids: torch.Tensor) -> torch.Tensor:
    """Return a classifier's logits for the analyzed text, padded to the model's context length as in training."""
    context = bundle.model.context
    padded_ids = torch.full((1, context), bundle.tokenizer.pad_id or 0)
    padded_ids[:, : input_ids.shape[1]] = input_ids
    attention_mask = torch.arange(context)[None] < input_ids.shape[1]
    logits: torch.Tensor = bundle.model(padded_ids, attention_mask).logits
    return logits
