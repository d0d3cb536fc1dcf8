import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from headtohead.attention_analysis import thumbnails
from headtohead.attention_analysis.map_images import render_map_png
from headtohead.errors import RunFolderError

RawFindings = dict[str, Any]


def strengths(png: bytes) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Decode a palette PNG chunk by chunk and verify every checksum."""
    at, content, shape = 8, b"", (0, 0)
    while at < len(png):
        (size,), kind = struct.unpack(">I", png[at : at + 4]), png[at + 4 : at + 8]
        body = png[at + 8 : at + 8 + size]
        assert struct.unpack(">I", png[at + 8 + size : at + 12 + size])[0] == zlib.crc32(kind + body)
        if kind == b"IHDR":
            width, height, *rest = struct.unpack(">IIBBBBB", body)
            shape = (height, width)
            assert rest == [8, 3, 0, 0, 0]
        content += body if kind == b"IDAT" else b""
        at += 12 + size
    lines = np.frombuffer(zlib.decompress(content), dtype=np.uint8).reshape(shape[0], shape[1] + 1)
    assert not lines[:, 0].any(), "no line is filtered"
    return lines[:, 1:]


@given(arrays.arrays(np.float32, st.tuples(st.integers(1, 6), st.integers(1, 6)), elements=st.floats(0, 1, width=32)))
def test_the_strength_of_a_pixel_is_the_square_root_of_the_weight(weights: np.ndarray[Any, Any]) -> None:
    assert np.abs((strengths(render_map_png(weights, thumbnails.PIXEL_SCALE)) / 255.0) ** 2 - weights).max() < 0.005


def test_what_is_no_weight_is_drawn_blank_and_not_rejected() -> None:
    samples = strengths(render_map_png(np.array([[np.nan, -1.0], [2.0, 0.0]]), thumbnails.PIXEL_SCALE))
    assert samples.tolist() == [[0, 0], [255, 0]]


def test_a_head_says_where_it_looks() -> None:
    before = np.zeros((4, 4))
    before[range(1, 4), range(3)] = 1.0
    before[0, 0] = 1.0
    output = thumbnails.describe_thumbnail(before, 0, 1, "after")
    assert output.startswith("Layer 1, head 2, after training.")
    assert "25 % on the token itself, 100 % on the previous token, 33 % on the first token" in output


def test_maps_are_read_from_the_first_seed_that_has_some(
    raw_findings: Callable[..., RawFindings], write_folder: Callable[[RawFindings], Path]
) -> None:
    experiment_folder = write_folder(raw_findings({"v": 0.1}))
    (experiment_folder / "v" / "seed-10").mkdir()
    (experiment_folder / "v" / "seed-0").rename(experiment_folder / "v" / "seed-2")
    maps = thumbnails.read_training_maps(experiment_folder, ["baseline", "v", "absent"])
    assert {name: item.seed for name, item in maps.items()} == {"baseline": 0, "v": 2}
    (layer,) = thumbnails.render_thumbnails(maps["v"])
    assert [(head.head, head.stage) for head in (*layer.before, *layer.after)] == [
        (0, "before"),
        (1, "before"),
        (0, "after"),
        (1, "after"),
    ]


def test_maps_that_are_damaged_are_reported(
    raw_findings: Callable[..., RawFindings], write_folder: Callable[[RawFindings], Path]
) -> None:
    experiment_folder = write_folder(raw_findings({"v": 0.1}))
    (experiment_folder / "v" / "seed-0" / "maps.safetensors").write_bytes(b"no")
    with pytest.raises(RunFolderError, match=r"maps\.safetensors is corrupted"):
        thumbnails.read_training_maps(experiment_folder, ["v"])


def test_a_long_text_is_cut_to_what_can_be_seen() -> None:
    long = np.full((1, 200, 200), 1 / 200, dtype=np.float32)
    (layer,) = thumbnails.render_thumbnails(thumbnails.TrainingMaps("text", ("t",) * 200, {}, {0: long}))
    assert layer.before == ()
    assert len(layer.after[0].data_uri) < 2_000
