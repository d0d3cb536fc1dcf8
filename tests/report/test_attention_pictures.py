"""Attention pictures: exact weights, small files, and valid output for any token."""

import time
import xml.etree.ElementTree as ET
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headtohead.attention_analysis import figure as attention_figure
from headtohead.attention_analysis import head_tables, map_images, svg
from headtohead.attention_analysis import page as attention_analysis_page
from headtohead.attention_analysis.maps import AttentionMaps
from headtohead.errors import RequestError
from headtohead.experiment.schemas import HeadMeasures
from headtohead.presentation.picture_files import check_picture_path

HOSTILE = ("</script>", "<b>", "&amp;", '"', "\x00\x1b", "é", "]]>", "{{ 7 * 7 }}")


def weights(heads: int, length: int, *, causal: bool = True, spread: float = 1.0) -> np.ndarray[Any, Any]:
    scores = np.random.default_rng(length).normal(0, spread, (heads, length, length)).astype(np.float32)
    if causal:
        scores[:, *np.triu_indices(length, 1)] = -np.inf
    result = np.exp(scores - scores.max(-1, keepdims=True))
    return result / result.sum(-1, keepdims=True)


def sheet(
    *layers: np.ndarray[Any, Any], tokens: tuple[str, ...] | None = None, pads: int = 0, **more: Any
) -> attention_figure.AttentionFigure:
    length = layers[0].shape[-1]
    names = tokens or tuple(f"token{i}" for i in range(length))
    panel = AttentionMaps(
        "",
        " ".join(names),
        names,
        np.arange(length) < length - pads,
        layers,
        is_causal=False,
        layer_numbers=tuple(range(1, len(layers) + 1)),
        head_numbers=tuple(range(1, len(layers[0]) + 1)),
        **more,
    )
    return attention_figure.AttentionFigure("a model", (panel,))


def chunk(picture: bytes, kind: bytes) -> np.ndarray[Any, Any]:
    """Return the content of a PNG chunk, line by line."""
    side = int.from_bytes(picture[16:20], "big")
    at = picture.index(kind)
    size = int.from_bytes(picture[at - 4 : at], "big")
    lines = np.frombuffer(zlib.decompress(picture[at + 4 : at + 4 + size]), np.uint8).reshape(-1, side + 1)
    assert not lines[:, 0].any(), "no line is filtered"
    return lines[:, 1:]


def read_back(picture: bytes, scale: map_images.PixelScale, signed: bool = False) -> np.ndarray[Any, Any]:
    """Decode a picture in the same way as the script of the page."""
    counts, top = chunk(picture, b"IDAT").astype(float), 255
    if scale.is_16_bit:
        counts, top = 256 * counts + chunk(picture, b"loWB"), 65535
    middle = (top + 1) / 2
    strength = (counts - middle) / (middle - 1) if signed else counts / top
    return np.sign(strength) * np.abs(strength) ** (1 / scale.exponent)


@pytest.mark.parametrize("is_16_bit", [True, False])
@pytest.mark.parametrize("length", [2, 16, 200])
def test_weights_are_read_back_from_a_picture_as_precisely_as_it_says(is_16_bit: bool, length: int) -> None:
    weight = weights(1, length)[0]
    scale = map_images.PixelScale(map_images.choose_opacity_exponent(length), is_16_bit=is_16_bit)
    error = np.abs(read_back(map_images.render_map_png(weight, scale), scale) - weight).max()
    assert 0 < error <= scale.precision
    assert scale.precision < (1e-4 if is_16_bit else 0.02)


@pytest.mark.parametrize("is_16_bit", [True, False])
def test_a_difference_keeps_its_sign_and_nothing_is_blank(is_16_bit: bool) -> None:
    apart = np.array([[0.5, -0.5], [0.0, -0.01]])
    scale = map_images.PixelScale(0.5, is_16_bit=is_16_bit)
    result = read_back(map_images.render_map_png(apart, scale, is_difference=True), scale, signed=True)
    assert np.abs(result - apart).max() <= 2.1 * scale.precision
    assert result[1, 0] == 0
    opacity = map_images.DIFFERENCE_PALETTE[1]
    assert opacity[128] == 0 and opacity[255] == 255 and opacity[0] >= 254
    assert len(map_images.DIFFERENCE_PALETTE[0]) == 768


def test_an_even_row_is_drawn_at_a_quarter_whatever_its_length() -> None:
    for length in (16, 64, 1024):
        assert (1 / length) ** map_images.choose_opacity_exponent(length) == pytest.approx(0.25)
    assert map_images.choose_opacity_exponent(4) == 0.5, "never stronger than the square root"


def test_pooling_keeps_the_weight_that_is_furthest_from_zero() -> None:
    tensor = np.zeros((5, 5))
    tensor[0, 1], tensor[3, 2], tensor[4, 4], tensor[2, 3] = 0.9, -0.7, 0.2, 0.1
    assert map_images.max_pool_by_magnitude(tensor, 2).tolist() == [[0.9, 0, 0], [0, -0.7, 0], [0, 0, 0.2]]
    assert map_images.max_pool_by_magnitude(tensor, 1) is tensor


def test_many_long_maps_are_pooled_until_they_fit_and_the_page_states_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_figure, "MAX_PIXELS", 4 * 20 * 20)
    heads = attention_figure.render_figure_images(sheet(weights(2, 60), weights(2, 60)))
    assert heads.scale.pool_size == 3
    assert chunk(heads.png_by_head[0, 1, 1], b"IDAT").shape == (20, 20)
    page = attention_analysis_page.render_page(sheet(weights(2, 60), weights(2, 60)))
    assert "Each pixel shows the largest of 3 × 3 weights" in page
    assert "Each pixel shows the largest of 3 × 3 weights" in svg.render_svg(sheet(weights(2, 60), weights(2, 60)))
    monkeypatch.setattr(attention_figure, "MAX_TOTAL_BYTES", 2_000)
    assert attention_figure.render_figure_images(sheet(weights(2, 60), weights(2, 60))).scale.pool_size > 3


@pytest.mark.parametrize("causal", [True, False])
def test_twelve_maps_of_1024_tokens_are_quick_and_small(causal: bool, tmp_path: Path) -> None:
    """Measured in CPU time, so that load from other processes has no effect."""
    output = sheet(weights(12, 1024, causal=causal, spread=2))
    for name in ("big.svg", "big.html"):
        began = time.process_time()
        path = svg.save_figure(output, tmp_path / name)
        assert time.process_time() - began < 10
        assert path.stat().st_size < 15_000_000
    assert attention_figure.render_figure_images(output).scale.pool_size == 1, "nothing is left out"


def test_a_picture_is_valid_xml_whatever_the_tokens_are() -> None:
    samples = svg.render_svg(sheet(weights(1, len(HOSTILE)), tokens=HOSTILE))
    root = ET.fromstring(samples)
    words = {node.text for node in root.iter("{http://www.w3.org/2000/svg}text")}
    assert {"</script>", "<b>", "&amp;", "��"} <= words
    images = list(root.iter("{http://www.w3.org/2000/svg}image"))
    assert len(images) == 1
    assert all(image.get("href").startswith("data:image/png;base64,") for image in images)


def test_small_multiples_name_layers_and_heads() -> None:
    samples = svg.render_svg(sheet(weights(2, 5), weights(2, 5), weights(2, 5)))
    words = [node.text for node in ET.fromstring(samples).iter("{http://www.w3.org/2000/svg}text")]
    for name in ("layer 1", "layer 2", "layer 3", "head 1", "head 2", "token4"):
        assert name in words
    assert len(list(ET.fromstring(samples).iter("{http://www.w3.org/2000/svg}image"))) == 6


def test_one_map_alone_has_every_token_on_both_axes() -> None:
    words = [n.text for n in ET.fromstring(svg.render_svg(sheet(weights(1, 30)))).iter() if n.tag.endswith("text")]
    assert all(words.count(f"token{i}") == 2 for i in range(30))


def test_padding_is_grey_and_named() -> None:
    samples = svg.render_svg(sheet(weights(1, 20, causal=False), pads=8))
    assert samples.count('fill="#e4e7eb"') == 2
    assert ">padding</text>" in samples
    assert ">padding</text>" not in svg.render_svg(sheet(weights(1, 20)))


def test_every_format_is_written(tmp_path: Path) -> None:
    starts = {"svg": b"<svg", "pdf": b"%PDF", "png": b"\x89PNG", "html": b"<!doctype html>"}
    for ending, start in starts.items():
        path = svg.save_figure(sheet(weights(2, 6)), tmp_path / "new" / f"map.{ending}")
        assert path.read_bytes().startswith(start)


def test_another_ending_or_a_folder_is_rejected_before_anything_is_drawn(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"map\.jpg: unsupported file extension '\.jpg'; did you mean '\.png'\?"):
        check_picture_path(tmp_path / "map.jpg")
    with pytest.raises(RequestError, match="unsupported file extension ''"):
        svg.save_figure(sheet(weights(1, 3)), tmp_path / "map")
    (tmp_path / "x.svg").mkdir()
    with pytest.raises(RequestError, match="is a folder"):
        check_picture_path(tmp_path / "x.svg")


def test_the_page_asks_for_nothing_and_shows_markup_as_text() -> None:
    page = attention_analysis_page.render_page(sheet(weights(1, len(HOSTILE)), tokens=HOSTILE, notes=("cut <here>",)))
    assert "http" not in page.replace("http-equiv", "").replace("http://www.w3.org/2000/svg", "")
    assert page.count("</script>") == 2, "the data and our script, and no token ends them"
    assert "&lt;/script&gt;</button>" in page
    assert "cut &lt;here&gt;" in page
    assert "{{ 7 * 7 }}" in page
    assert "default-src 'none'" in page


def test_measures_are_shaded_between_the_least_and_the_most_of_their_column() -> None:
    heads = [
        HeadMeasures(layer=1, head=h, entropy=e, padding=0.0) for h, e in ((1, 1.0), (2, 3.0), (3, 2.0), (4, None))
    ]
    table = head_tables.build_head_metrics_table("", heads)
    assert [column.title for column in table.columns] == ["layer.head", "entropy, bits"], "no padding, no column"
    assert [row[1].text for row in table.rows] == ["1.00", "3.00", "2.00", "–"]
    shades = attention_analysis_page.add_shades(table)["shades"]
    assert shades == [["0.000"], ["1.000"], ["0.500"], ["0.000"]]
    assert head_tables.format_metric_value("first", -0.00001) == "0.0"
    assert head_tables.format_metric_value("rise", -0.25) == "−0.250"
    assert head_tables.format_metric_value("rise", None) == "–"


def test_the_means_of_a_layer_replace_its_heads() -> None:
    heads = [HeadMeasures(layer=layer, head=head, entropy=float(head)) for layer in (1, 2) for head in (1, 2)]
    table = head_tables.build_head_metrics_table("", heads, by_layer=True)
    assert [[cell.text for cell in row] for row in table.rows] == [["1", "1.50"], ["2", "1.50"]]
