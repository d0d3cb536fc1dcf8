"""A trial's attention maps before and after training, as small images.

Images use a single color and encode the weight as opacity, so they work on light and dark backgrounds. Opacity is the
square root of the weight, so that rows spread over many tokens remain visible.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from headtohead import safe_open
from headtohead.attention_analysis.pictures import PixelScale, WeightArray, format_shares, render_head
from headtohead.errors import RunFolderError
from headtohead.experiment import schemas
from headtohead.experiment.run_folder import ExperimentRuns
from headtohead.presentation.renderers.png import build_data_uri

PIXEL_SCALE = PixelScale(power=0.5)
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
class HeadImage:
    """One head's image."""

    layer: int
    head: int
    when: str
    png: bytes
    words: str

    @property
    def data_uri(self) -> str:
        return build_data_uri(self.png)


@dataclass(frozen=True)
class LayerImages:
    """One layer's images before and after training."""

    layer: int
    before: tuple[HeadImage, ...]
    after: tuple[HeadImage, ...]


def read_training_maps(folder: Path, variants: Sequence[str]) -> dict[str, TrainingMaps]:
    """Return each variant's maps, from the first seed that has any."""
    maps_by_variant = {}
    for variant in variants:
        runs = ExperimentRuns(folder)
        for seed in runs.seeds(variant):
            run = runs.run(variant, seed).folder
            if (run / "maps.safetensors").is_file() and (run / "maps.json").is_file():
                maps_by_variant[variant] = _read_run_maps(run, seed)
                break
    return maps_by_variant


def _read_run_maps(run_folder: Path, seed: int) -> TrainingMaps:
    """Read the attention maps before and after training from a run folder."""
    header = schemas.read_record(run_folder / "maps.json", schemas.AttentionMapsFile)
    arrays = safe_open.read_arrays(run_folder / "maps.safetensors")
    layers: dict[str, dict[int, WeightArray]] = {"before": {}, "after": {}}
    for name, array in arrays.items():
        stage, _, layer = name.partition(".")
        if stage in layers:
            if not layer.isdecimal() or len(layer) > 4 or array.ndim != 3 or 0 in array.shape:
                raise RunFolderError(f"{run_folder / 'maps.safetensors'} is corrupted (no attention map in {name!r})")
            layers[stage][int(layer)] = array
    return TrainingMaps(header.text, tuple(header.tokens), layers["before"], layers["after"], seed)


def render_layers(maps: TrainingMaps) -> list[LayerImages]:
    """Render thumbnails of every head, layer by layer, up to MAX_LAYERS layers."""
    return [
        LayerImages(
            layer,
            _render_heads(maps.before.get(layer), layer, "before"),
            _render_heads(maps.after.get(layer), layer, "after"),
        )
        for layer in sorted({*maps.before, *maps.after})[:MAX_LAYERS]
    ]


def _render_heads(weights: WeightArray | None, layer: int, stage: str) -> tuple[HeadImage, ...]:
    """Render one layer's heads as thumbnails with descriptions."""
    images = []
    for head, head_weights in enumerate([] if weights is None else weights[:MAX_HEADS]):
        png = render_head(head_weights[:MAX_TOKENS, :MAX_TOKENS], PIXEL_SCALE)
        images.append(HeadImage(layer, head, stage, png, describe_head(head_weights, layer, head, stage)))
    return tuple(images)


def describe_head(weights: WeightArray, layer: int, head: int, stage: str) -> str:
    """Describe a thumbnail: the head's mean weight on the token itself, the previous token and the first token."""
    shares = {
        "the token itself": np.diagonal(weights).mean(),
        "the previous token": np.diagonal(weights, -1).mean() if len(weights) > 1 else 0.0,
        "the first token": weights[1:, 0].mean() if len(weights) > 1 else 0.0,
    }
    return f"Layer {layer + 1}, head {head + 1}, {stage} training. Mean weight: {format_shares(shares)}."
