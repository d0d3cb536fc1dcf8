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
from headtohead.attention_analysis.maps import (
    AttentionCheck,
    AttentionMaps,
    check_attention_maps,
    compute_attention_maps,
    encode_text,
    select_heads,
    subtract_maps,
)
from headtohead.attention_analysis.pictures import WeightArray
from headtohead.config import model
from headtohead.config.tasks import Target
from headtohead.errors import ModelError
from headtohead.experiment.schemas import HeadMeasures
from headtohead.pretrained.tokenizer import PretrainedTokenizer
from headtohead.saved_models import inference, model_io
from headtohead.saved_models.model_io import SavedModel
from headtohead.saved_models.open_model import ModelBundle, open_model

MAX_PADDED_LENGTH = 4096


BEFORE_TRAINING, AFTER_TRAINING = "before training", "after training"


@dataclass(frozen=True, eq=False)
class AttentionAnalysis(AttentionFigure):
    """Attention on one text: one model, a model before and after training, or two models and their difference.

    Displays itself in a notebook. Layers and heads are counted from 1 in text and rows, from 0 in arrays.
    """

    @property
    def shown(self) -> AttentionMaps:
        """The analyzed model's maps, after training."""
        return self.panels[1] if self.panels[0].name == BEFORE_TRAINING else self.panels[0]

    @property
    def maps(self) -> tuple[WeightArray, ...]:
        """One array of shape (heads, query, key) per layer."""
        return self.shown.layers

    @property
    def measures(self) -> Sequence[HeadMeasures]:
        """One row of metrics per head."""
        return self.measures_by_panel[self.shown.name]

    @property
    def checks(self) -> Sequence[AttentionCheck]:
        return self.checks_by_panel[self.shown.name]

    def save(self, path: str | Path) -> Path:
        """Save the analysis as a page (.html) or a picture (.svg, .pdf, .png)."""
        return svg.save_figure(self, path)

    def to_dict(self) -> dict[str, Any]:
        """Return the analysis as JSON values."""
        return {
            "title": self.title,
            "text": self.text,
            "tokens": list(self.tokens),
            "padding": int((~self.real).sum()),
            "notes": list(self.notes),
            "panels": [
                {
                    "name": name,
                    "measures": [{**head.model_dump(exclude_unset=True), "copies": head.copies} for head in heads],
                    "checks": [asdict(check) for check in self.checks_by_panel[name]],
                }
                for name, heads in self.measures_by_panel.items()
            ],
        }

    def _repr_html_(self) -> str:
        return page.render_fragment(self)

    def __repr__(self) -> str:
        return f"<attention of {self.title}: {len(self.tokens)} tokens, {self.shown.shape}>"


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
        raise ModelError("before_training and compare_to exclude each other")
    bundle = _resolve_model(model)
    named_bundles: list[tuple[str, ModelBundle]] = [(_format_model_name(bundle), bundle)]
    if before_training:
        named_bundles = [(BEFORE_TRAINING, _load_initial_model(bundle)), (AFTER_TRAINING, bundle)]
    elif compare_to is not None:
        other = _resolve_model(compare_to)
        names = [_format_model_name(bundle), _format_model_name(other)]
        if names[0] == names[1]:
            names = [item.name for item in (bundle, other)]
        if names[0] == names[1]:
            raise ModelError(f"{names[0]}: both models are the same; there is no difference to show")
        named_bundles = list(zip(names, (bundle, other), strict=True))
    panels = [select_heads(_compute_panel(item, text, name, pad), layer, head) for name, item in named_bundles]
    measures = {
        maps.name: _measure_panel(item, maps, ablate_heads)
        for maps, (_, item) in zip(panels, named_bundles, strict=True)
    }
    checks = {maps.name: check_attention_maps(maps) for maps in panels}
    if compare_to is not None:
        panels.append(subtract_maps(*panels))
    title = " and ".join(name for name, _ in named_bundles) if compare_to is not None else _format_model_name(bundle)
    return AttentionAnalysis(title, tuple(panels), measures, checks)


def _resolve_model(model: str | Path | ModelBundle) -> ModelBundle:
    return open_model(model) if isinstance(model, str | Path) else model


def _format_model_name(bundle: ModelBundle) -> str:
    """Return "variant, seed 0", or the name of a pretrained model."""
    return f"{bundle.trial.variant}, seed {bundle.trial.seed}" if isinstance(bundle, SavedModel) else bundle.name


def _load_initial_model(bundle: ModelBundle) -> ModelBundle:
    if not isinstance(bundle, SavedModel):
        raise ModelError(f"{bundle.name}: the weights before training are only known for run folders")
    return model_io.load(bundle.folder, use_initial_weights=True)


def _compute_panel(bundle: ModelBundle, text: str, name: str, pad: bool | None) -> AttentionMaps:
    """Encode the text with the model's special tokens and return its attention maps."""
    before, after = _get_prefix_and_suffix_ids(bundle, text)
    encoded = encode_text(bundle.tokenizer, text, bundle.model.context, prefix_ids=before, suffix_ids=after)
    return compute_attention_maps(
        bundle.model,
        encoded,
        name=name,
        is_causal=bundle.target.is_causal,
        pad_to=_choose_padded_length(bundle, len(encoded.ids), pad),
        pad_id=bundle.tokenizer.pad_id,
    )


def _choose_padded_length(bundle: ModelBundle, length: int, pad: bool | None) -> int | None:
    """Return the length to which the text is padded for its attention maps.

    Unmasked padding is shown in full, because it changes the model's output.
    """
    context = bundle.model.context
    if pad and context > MAX_PADDED_LENGTH:
        raise ModelError(
            f"{bundle.name}: cannot show a text padded to {context:,} tokens; the limit is {MAX_PADDED_LENGTH:,}"
        )
    if pad is not None:
        return context if pad else None
    if not isinstance(bundle, SavedModel) or not bundle.target.is_class:
        return None
    if not isinstance(bundle.trial.model, model.TransformerConfig):
        return None
    strip = length + max(2, length // 4)
    return min(context, strip) if bundle.trial.model.mask_padding else context


def _get_prefix_and_suffix_ids(bundle: ModelBundle, text: str) -> tuple[Sequence[int], Sequence[int]]:
    """Return the special tokens that the model expects before and after every text."""
    tokenizer = bundle.tokenizer
    if isinstance(bundle, SavedModel) and not isinstance(tokenizer, PretrainedTokenizer):
        # A language model trained on single rows reads the start token; the stop token is only predicted.
        starts = bundle.target.is_causal and tokenizer.bos_id is not None and tokenizer.eos_id is not None
        return ([tokenizer.bos_id] if starts and tokenizer.bos_id is not None else []), []
    assert isinstance(tokenizer, PretrainedTokenizer)
    if not bundle.target.is_causal:
        framed_ids, text_ids = tokenizer.encode_with_special_tokens(text), tokenizer.encode(text)
        start = next(
            (index for index in range(len(framed_ids)) if framed_ids[index : index + len(text_ids)] == text_ids), 0
        )
        return framed_ids[:start], framed_ids[start + len(text_ids) :]
    return tokenizer.prompt(""), []


def _measure_panel(bundle: ModelBundle, maps: AttentionMaps, ablate_heads: bool) -> list[HeadMeasures]:
    """Return every head's metrics and, with `ablate_heads`, the loss increase when that head is ablated."""
    heads = head_metrics.measure_maps(maps)
    if maps.is_causal:
        heads = head_metrics.add_induction_scores(heads, bundle.model, bundle.model.context, bundle.tokenizer)
    if not ablate_heads:
        return heads
    compute_losses = _build_loss_function(bundle, torch.tensor([maps.ids]))
    increases = head_metrics.compute_ablated_losses(bundle.model, heads, compute_losses) - compute_losses()
    return [
        head.model_copy(update={"rise": head_metrics.to_finite_or_none(float(increase.mean()))})
        for head, increase in zip(heads, increases, strict=True)
    ]


def _build_loss_function(bundle: ModelBundle, input_ids: torch.Tensor) -> Callable[[], WeightArray]:
    """Return a function that computes this text's loss: for each token, or for the predicted class."""
    if bundle.target is Target.NONE:
        raise ModelError(f"{bundle.name}: an encoder without a task head has no loss; leave out --ablate-heads")
    if bundle.target.is_causal and input_ids.shape[1] < 2:
        raise ModelError("a text of one token has no loss: no token is predicted")

    @torch.no_grad()
    def score() -> WeightArray:
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
            _compute_class_logits(bundle, input_ids).argmax(-1) if bundle.target.is_class else input_ids[0, :1]
        )
    return score


def _compute_class_logits(bundle: ModelBundle, input_ids: torch.Tensor) -> torch.Tensor:
    """Return the class logits for a text padded to the model's context length, as in training."""
    context = bundle.model.context
    row = torch.full((1, context), bundle.tokenizer.pad_id or 0)
    row[:, : input_ids.shape[1]] = input_ids
    logits: torch.Tensor = bundle.model(row, torch.arange(context)[None] < input_ids.shape[1]).logits
    return logits
