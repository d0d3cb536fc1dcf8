"""Attention sections: per-head metrics, and attention maps before and after training."""

from __future__ import annotations

from itertools import chain
from typing import Any

from headtohead.attention_analysis import thumbnails
from headtohead.attention_analysis.head_chart import build_heads_chart
from headtohead.attention_analysis.head_tables import build_seed_averaged_table
from headtohead.presentation.section import Block, Figure, HtmlBlock, Image, ImageGrid, Paragraph, Section, TableBlock
from headtohead.report.context import ReportContext

MAX_LABELED_TOKENS = 10
"""attention maps of longer texts have no token labels"""
MAX_UNFOLDED_ROWS = 8
"""tables with more rows are collapsed on the page"""
HEADS_NOTE = (
    "Entropy: how widely a token attends; 0 bits means a single token. Induction: weight on the token that followed "
    "the previous occurrence of the current token, on random tokens shown twice. Loss increase: how much the loss "
    "grows when the head is ablated. A head has no effect if that is certainly below 0.01 nats, 1 % of perplexity."
)
MAX_MAPS_PER_ROW = 8
"""attention maps per row in a document"""
MAPS_NOTE = (
    "Rows are query tokens, columns are key tokens; stronger colors mean more weight. The scale is the square root, so "
    "small weights look larger than they are."
)


def build_heads_section(context: ReportContext) -> Section | None:
    """Return the section with the chart and table of per-head attention metrics."""
    table = build_seed_averaged_table(context.findings)
    if not table.rows:
        return None
    blocks: list[Block] = [Paragraph(HEADS_NOTE, "notes")]
    if (chart := build_heads_chart(context.findings)) is not None:
        caption = (
            "Marks: mean over seeds; lines: 95 % interval, from three seeds on. Heads of one layer are exchangeable: "
            "head 1 of one seed resembles head 1 of another no more than head 2."
        )
        blocks.insert(0, Figure(chart, caption))
    is_open = len(table.rows) <= MAX_UNFOLDED_ROWS
    blocks.append(TableBlock(table, summary="Measures of every head", is_open=is_open, layout="grid", is_detail=True))
    return Section("heads", "Attention heads", blocks, "Attention heads")


def build_maps_section(context: ReportContext) -> Section | None:
    """Return the section with attention maps before and after training."""
    maps = [
        _make_map_template_variables(name, training_maps)
        for name, training_maps in context.load_attention_maps().items()
    ]
    if not maps:
        return None
    variables = {"maps": maps, "max_labeled_tokens": MAX_LABELED_TOKENS}
    block = HtmlBlock("maps", variables, image_grids=[_build_map_image_grid(variant_maps) for variant_maps in maps])
    title = "Attention maps before and after training"
    return Section("maps", title, [Paragraph(MAPS_NOTE), block], "Attention maps")


def _make_map_template_variables(variant: str, training_maps: thumbnails.TrainingMaps) -> dict[str, Any]:
    """Return what the section's HTML template needs to show one variant's attention maps."""
    tokens = training_maps.tokens[: thumbnails.MAX_TOKENS]
    num_heads = max((len(heads) for heads in training_maps.after.values()), default=1)
    return {
        "variant": variant,
        "text": training_maps.text,
        "seed": training_maps.seed,
        "tokens": tokens,
        "is_truncated": len(training_maps.tokens) > len(tokens),
        "layers": thumbnails.render_thumbnails(training_maps),
        "cell_size": _choose_map_cell_size(len(tokens) or 1, num_heads),
    }


def _build_map_image_grid(map_variables: dict[str, Any]) -> ImageGrid:
    """Return one variant's attention maps for documents: for each layer, the heads before training, then after it."""
    layers = [
        [
            Image(head.png, f"{head.layer + 1}.{head.head + 1} {head.stage}", head.alt_text)
            for head in layer.before + layer.after
        ]
        for layer in map_variables["layers"]
    ]
    layers_per_row = max(1, MAX_MAPS_PER_ROW // max(map(len, layers)))
    rows = [list(chain(*layers[i : i + layers_per_row])) for i in range(0, len(layers), layers_per_row)]
    text = f"{map_variables['variant']}, seed {map_variables['seed']}, “{map_variables['text']}”"
    caption = f"Attention maps: {text}. Labels: layer and head, before or after training."
    tokens = map_variables["tokens"]
    return ImageGrid(rows, caption, tokens if len(tokens) <= MAX_LABELED_TOKENS else ())


def _choose_map_cell_size(num_tokens: int, num_heads: int) -> int:
    """Return the pixels per token pair of an attention map, chosen so that up to four heads fit side by side."""
    if num_tokens <= MAX_LABELED_TOKENS:
        return 20 if num_tokens < 5 else 16 if num_tokens < 8 else 13
    return max(2, (132 if num_heads < 4 else 84) // num_tokens)
