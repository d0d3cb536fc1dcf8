"""Thumbnails of a trial's attention maps before and after training, for the report.

Images use a single color and encode the weight as opacity, so they work on light and dark backgrounds. Opacity is the
square root of the weight, so that rows spread over many tokens remain visible.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from headtohead import safe_open
from headtohead.attention_analysis.map_images import PixelScale, WeightArray, format_mean_weights, render_map_png
from headtohead.errors import RunFolderError
from headtohead.experiment import schemas
from headtohead.experiment.run_folder import ExperimentRuns
from headtohead.presentation.renderers.png import build_data_uri

PIXEL_SCALE = PixelScale(exponent=0.5)
MAX_TOKENS = 64
MAX_LAYERS = 12
MAX_HEADS = 12


@dataclass(frozen=True)
class TrainingMaps:
    """Attention on one text before and after training: one array of shape (heads, query, key) per layer."""

    text: str
    tokens: tuple[str, ...]
    before: Mapping[int, WeightArray]
    after: Mapping[int, WeightArray]
    seed: int = 0


@dataclass(frozen=True)
class HeadThumbnail:
    """The thumbnail of one head's map; layer and head are counted from 0."""

    layer: int
    head: int
    stage: str
    """"before" or "after" training"""
    png: bytes
    alt_text: str

    @property
    def data_uri(self) -> str:
        return build_data_uri(self.png)


@dataclass(frozen=True)
class LayerThumbnails:
    """One layer's thumbnails before and after training."""

    layer: int
    before: tuple[HeadThumbnail, ...]
    after: tuple[HeadThumbnail, ...]


def read_training_maps(folder: Path, variants: Sequence[str]) -> dict[str, TrainingMaps]:
    """Read each variant's maps for the report's thumbnails, from the first seed that has any."""
    maps_by_variant = {}
    for variant in variants:
        runs = ExperimentRuns(folder)
        for seed in runs.seeds(variant):
            run_folder = runs.run(variant, seed).folder
            if (run_folder / "maps.safetensors").is_file() and (run_folder / "maps.json").is_file():
                maps_by_variant[variant] = _read_run_maps(run_folder, seed)
                break
    return maps_by_variant


def _read_run_maps(run_folder: Path, seed: int) -> TrainingMaps:
    """Read the attention maps that thumbnails show, before and after training, from a run folder."""
    header = schemas.read_record(run_folder / "maps.json", schemas.AttentionMapsFile)
    arrays = safe_open.read_safetensors(run_folder / "maps.safetensors")
    maps_by_stage: dict[str, dict[int, WeightArray]] = {"before": {}, "after": {}}
    for name, array in arrays.items():
        stage, _, layer = name.partition(".")
        if stage in maps_by_stage:
            if not layer.isdecimal() or len(layer) > 4 or array.ndim != 3 or 0 in array.shape:
                raise RunFolderError(f"{run_folder / 'maps.safetensors'} is corrupted (no attention map in {name!r})")
            maps_by_stage[stage][int(layer)] = array
    return TrainingMaps(header.text, tuple(header.tokens), maps_by_stage["before"], maps_by_stage["after"], seed)


def render_thumbnails(maps: TrainingMaps) -> list[LayerThumbnails]:
    """Render thumbnails of every head, layer by layer, up to MAX_LAYERS layers."""
    return [
        LayerThumbnails(
            layer,
            _render_layer_thumbnails(maps.before.get(layer), layer, "before"),
            _render_layer_thumbnails(maps.after.get(layer), layer, "after"),
        )
        for layer in sorted({*maps.before, *maps.after})[:MAX_LAYERS]
    ]


def _render_layer_thumbnails(weights: WeightArray | None, layer: int, stage: str) -> tuple[HeadThumbnail, ...]:
    """Render one layer's heads as thumbnails with descriptions."""
    thumbnails = []
    for head, head_weights in enumerate([] if weights is None else weights[:MAX_HEADS]):
        png = render_map_png(head_weights[:MAX_TOKENS, :MAX_TOKENS], PIXEL_SCALE)
        alt_text = describe_thumbnail(head_weights, layer, head, stage)
        thumbnails.append(HeadThumbnail(layer, head, stage, png, alt_text))
    return tuple(thumbnails)


def describe_thumbnail(weights: WeightArray, layer: int, head: int, stage: str) -> str:
    """Return a thumbnail's text alternative: mean weight on the token itself, the previous and the first token."""
    weights_by_position = {
        "the token itself": np.diagonal(weights).mean(),
        "the previous token": np.diagonal(weights, -1).mean() if len(weights) > 1 else 0.0,
        "the first token": weights[1:, 0].mean() if len(weights) > 1 else 0.0,
    }
    mean_weights = format_mean_weights(weights_by_position)
    return f"Layer {layer + 1}, head {head + 1}, {stage} training. Mean weight: {mean_weights}."
