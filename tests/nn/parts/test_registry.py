"""The registry: files and packages of parts, names that are taken, options held against signatures, and the words of
its errors."""

import inspect
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from headtohead.config import base
from headtohead.config.validation import component_options
from headtohead.errors import PartError
from headtohead.nn.parts import registry
from headtohead.nn.parts import registry as parts_registry
from headtohead.nn.parts.base import ModelSizes
from headtohead.nn.parts.pattern import Pattern
from headtohead.nn.parts.registry import register_part


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Path]:
    """Write a file of parts; what it enters is forgotten after the test."""
    parts_registry.list_part_classes()
    monkeypatch.setattr(registry, "_registry", dict(registry._registry))
    monkeypatch.setattr(registry, "_plugin_files", dict(registry._plugin_files))

    def written(name: str, text: str) -> Path:
        (tmp_path / name).write_text(
            "from headtohead.nn.parts import Merge, Norm, register_part\n" + inspect.cleandoc(text)
        )
        return tmp_path / name

    return written


NORM = """
@register_part("norm", "{name}")
class Mine(Norm):
    '''Does {what}.'''
    def __init__(self, sizes, *, power: int = 2, how: str = "so"):
        super().__init__(sizes)
    def forward(self, x):
        return x
"""


def test_a_file_of_parts_is_used_and_known_by_its_content(write: Any) -> None:
    path = write("mine.py", NORM.format(name="mine", what="nothing"))
    assert parts_registry.load_plugin(path.name, path.parent) == path
    assert parts_registry.load_plugin(path) == path  # a second time does nothing
    made = parts_registry.get_part_class("norm", "mine")
    assert component_options.get_summary(made) == "Does nothing."
    assert made.__module__ == parts_registry.compute_module_name(path)
    assert path in parts_registry.get_plugin_files()
    assert made in parts_registry.list_part_classes()


def test_an_edited_file_replaces_its_own_parts(write: Any) -> None:
    parts_registry.load_plugin(write("mine.py", NORM.format(name="mine", what="nothing")))
    parts_registry.load_plugin(write("mine.py", NORM.format(name="mine", what="more")))
    assert component_options.get_summary(parts_registry.get_part_class("norm", "mine")) == "Does more."


def test_a_name_that_is_taken_is_an_error_that_names_both_files(write: Any) -> None:
    one, two = (write(f"{n}.py", NORM.format(name="mine", what=n)) for n in ("one", "two"))
    parts_registry.load_plugin(one)
    with pytest.raises(PartError, match=rf"norm 'mine' is defined twice: in {one} and in {two}"):
        parts_registry.load_plugin(two)
    assert component_options.get_summary(parts_registry.get_part_class("norm", "mine")) == "Does one."


def test_a_built_in_name_is_taken(write: Any) -> None:
    path = write("mine.py", NORM.format(name="layer", what="nothing"))
    with pytest.raises(PartError, match=r"norm 'layer' is defined twice: in .*norm\.py and in .*mine\.py"):
        parts_registry.load_plugin(path)


def test_a_slot_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(PartError, match=r"Mine: unknown slot 'patern'; did you mean 'pattern'\? \(slots: position"):

        @register_part("patern", "mine")
        class Mine(Pattern):
            pass


def test_an_unknown_part_is_an_error_with_the_nearest_match() -> None:
    with pytest.raises(PartError, match=r"unknown position 'alibbi'; did you mean 'alibi'\? \(available: alibi, l"):
        parts_registry.get_part_class("position", "alibbi")


def test_a_part_of_another_slot_is_unknown_here() -> None:
    with pytest.raises(PartError, match=r"unknown norm 'alibi' \(available: layer, rms"):
        parts_registry.get_part_class("norm", "alibi")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("class Mine(Norm:\n    pass", r"mine\.py, line 2: "),
        ("1 / 0", r"mine\.py: ZeroDivisionError: division by zero"),
        ("import no_such_thing", r"mine\.py: ModuleNotFoundError: No module named 'no_such_thing'"),
    ],
    ids=["syntax", "raises", "import"],
)
def test_a_file_that_fails_is_an_error_and_leaves_nothing_behind(text: str, words: str, write: Any) -> None:
    before = parts_registry.list_part_classes()
    path = write("mine.py", NORM.format(name="mine", what="nothing") + "\n" + text if "class" not in text else text)
    with pytest.raises(PartError, match=words):
        parts_registry.load_plugin(path)
    assert parts_registry.list_part_classes() == before
    assert path not in parts_registry.get_plugin_files()


def test_a_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(PartError, match=r"nothing\.py: file of parts not found"):
        parts_registry.load_plugin("nothing.py", tmp_path)


@pytest.mark.parametrize(
    ("slot", "value", "words"),
    [
        (
            "position",
            "alibbi",
            r"here: unknown position 'alibbi'\n    did you mean 'alibi'\?\n    allowed: alibi, ",
        ),
        ("position", {"kind": "rope", "bse": 10}, r"here.bse: rope has no option 'bse'\n    did you mean 'base'\?"),
        ("position", {"kind": "none", "x": 1}, "here.x: none has no option 'x'; it has no options"),
        ("pattern", {"kind": "window", "size": "8"}, "here.size: must be a whole number, not '8'"),
        ("pattern", {"kind": "window", "size": True}, "here.size: must be a whole number, not True"),
        ("pattern", {"kind": "window", "size": 8.0}, "here.size: must be a whole number, not 8.0"),
        ("pattern", "window", r"here: window requires the option 'size' \(a whole number\)"),
        ("position", {"kind": "rope", "base": "big"}, "here.base: must be a number, not 'big'"),
        ("norm", {"kind": "layer", "bias": 1}, "here.bias: must be true or false, not 1"),
        ("projection", {"kind": "linear", "key_heads": 0.5}, "here.key_heads: must be a whole number, not 0.5"),
        (
            "feedforward",
            {"kind": "mlp", "activation": "rel"},
            "must be one of 'relu', 'gelu', 'gelu-tanh', 'silu', not",
        ),
        ("merge", {"draw": "once"}, "here: a table of options needs kind = the merge"),
    ],
)
def test_options_that_do_not_fit_are_faults_with_their_place(slot: str, value: Any, words: str) -> None:
    faults = parts_registry.validate_part_config(slot, value, "here")
    assert len(faults) == 1
    with pytest.raises(AssertionError, match=words):
        raise AssertionError(str(faults[0]))


@pytest.mark.parametrize(
    ("slot", "value"),
    [
        ("position", "rope"),
        ("position", {"kind": "rope", "base": 10000, "fraction": 1}),  # a whole number is a number
        ("position", {"kind": "alibi", "slope": None}),
        ("merge", {"kind": "shuffle", "draw": "every-pass"}),
        ("projection", {"kind": "linear", "key_heads": 2, "bias": False}),
    ],
)
def test_options_that_fit_are_no_faults(slot: str, value: Any) -> None:
    assert parts_registry.validate_part_config(slot, value, "here") == []


def test_building_with_options_that_do_not_fit_is_an_error() -> None:
    sizes = ModelSizes(width=16, heads=4, head_dim=4, layers=1, context=32, vocab_size=7, is_causal=True)
    with pytest.raises(PartError, match=r"merge\.by: must be a whole number, not 'one'"):
        parts_registry.build_part("merge", base.ComponentConfig(kind="shift", by="one"), sizes)


def test_every_built_in_part_says_what_it_is_in_a_line() -> None:
    for made in parts_registry.list_part_classes():
        assert made.__doc__ is not None
        assert 10 < len(component_options.get_summary(made)) < 130, made


def test_parts_of_installed_packages_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[str, str], Path]
) -> None:
    write("installed_parts.py", NORM.format(name="installed", what="nothing"))
    write("broken_parts.py", "1 / 0")
    monkeypatch.syspath_prepend(tmp_path)

    def offered(value: str) -> None:
        point = metadata.EntryPoint("any", value, registry.ENTRY_POINT_GROUP)
        monkeypatch.setattr(registry.metadata, "entry_points", lambda group: [point] if group == point.group else [])
        monkeypatch.setattr(registry, "_loaded_sources", set())

    offered("installed_parts")
    assert "installed" in parts_registry.list_part_names("norm")
    offered("broken_parts")
    with pytest.raises(PartError, match="entry point broken_parts: ZeroDivisionError: division by zero"):
        parts_registry.list_part_names("norm")


def test_a_part_whose_types_cannot_be_resolved_is_still_a_part(write: Any) -> None:
    text = "from __future__ import annotations\n" + NORM.format(name="mine", what="nothing").replace(
        "sizes,", "sizes: Unknown,"
    )
    path = write("mine.py", "")
    path.write_text(
        text.replace("annotations\n", "annotations\nfrom headtohead.nn.parts import Norm, register_part\n", 1)
    )
    parts_registry.load_plugin(path)
    assert parts_registry.validate_part_config("norm", {"kind": "mine", "power": 3}, "here") == []
    assert len(parts_registry.validate_part_config("norm", {"kind": "mine", "powr": 3}, "here")) == 1
