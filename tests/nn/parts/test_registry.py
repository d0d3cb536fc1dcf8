"""The registry: files and packages of parts, duplicate names, options checked against signatures, error messages."""

import inspect
import tomllib
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from headtohead.config import base
from headtohead.config.validation import component_options
from headtohead.errors import PartError
from headtohead.nn.parts import registry
from headtohead.nn.parts.base import ModelSizes
from headtohead.nn.parts.pattern import Pattern
from headtohead.nn.parts.registry import register_part


@pytest.fixture
def write_parts_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Path]:
    """Write a file of parts. Parts that it registers are removed after the test."""
    registry.list_part_classes()
    monkeypatch.setattr(registry, "_registry", dict(registry._registry))
    monkeypatch.setattr(registry, "_plugin_files", dict(registry._plugin_files))

    def write(name: str, source: str) -> Path:
        (tmp_path / name).write_text(
            "from headtohead.parts import Merge, Norm, register_part\n" + inspect.cleandoc(source)
        )
        return tmp_path / name

    return write


NORM = """
@register_part("norm", "{name}")
class Mine(Norm):
    '''Does {what}.'''
    def __init__(self, sizes, *, power: int = 2, how: str = "so"):
        super().__init__(sizes)
    def forward(self, x, context):
        return x
"""


def test_a_file_of_parts_is_used_and_known_by_its_content(write_parts_file: Any) -> None:
    path = write_parts_file("mine.py", NORM.format(name="mine", what="nothing"))
    assert registry.load_plugin(path.name, path.parent) == path
    assert registry.load_plugin(path) == path  # a second time does nothing
    part_class = registry.get_part_class("norm", "mine")
    assert component_options.get_component_summary(part_class) == "Does nothing."
    assert part_class.__module__ == registry.compute_plugin_module_name(path)
    assert path in registry.get_plugin_files()
    assert part_class in registry.list_part_classes()


def test_an_edited_file_replaces_its_own_parts(write_parts_file: Any) -> None:
    registry.load_plugin(write_parts_file("mine.py", NORM.format(name="mine", what="nothing")))
    registry.load_plugin(write_parts_file("mine.py", NORM.format(name="mine", what="more")))
    assert component_options.get_component_summary(registry.get_part_class("norm", "mine")) == "Does more."


def test_a_name_that_is_taken_is_an_error_that_names_both_files(write_parts_file: Any) -> None:
    first, second = (write_parts_file(f"{n}.py", NORM.format(name="mine", what=n)) for n in ("one", "two"))
    registry.load_plugin(first)
    with pytest.raises(PartError, match=rf"norm 'mine' is defined twice: in {first} and in {second}"):
        registry.load_plugin(second)
    assert component_options.get_component_summary(registry.get_part_class("norm", "mine")) == "Does one."


def test_a_built_in_name_is_taken(write_parts_file: Any) -> None:
    path = write_parts_file("mine.py", NORM.format(name="layer", what="nothing"))
    with pytest.raises(PartError, match=r"norm 'layer' is defined twice: in .*norm\.py and in .*mine\.py"):
        registry.load_plugin(path)


def test_a_slot_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(PartError, match=r"Mine: unknown slot 'patern'; did you mean 'pattern'\? \(slots: embedding"):

        @register_part("patern", "mine")
        class Mine(Pattern):
            pass


def test_an_unknown_part_is_an_error_with_the_nearest_match() -> None:
    with pytest.raises(PartError, match=r"unknown position 'alibbi'; did you mean 'alibi'\? \(available: alibi, l"):
        registry.get_part_class("position", "alibbi")


def test_a_part_of_a_different_slot_is_unknown() -> None:
    with pytest.raises(PartError, match=r"unknown norm 'alibi' \(available: layer, none, rms"):
        registry.get_part_class("norm", "alibi")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("class Mine(Norm:\n    pass", r"mine\.py, line 2: "),
        ("1 / 0", r"mine\.py: ZeroDivisionError: division by zero"),
        ("import no_such_thing", r"mine\.py: ModuleNotFoundError: No module named 'no_such_thing'"),
    ],
    ids=["syntax", "raises", "import"],
)
def test_a_file_that_fails_is_an_error_and_leaves_nothing_behind(
    text: str, message: str, write_parts_file: Any
) -> None:
    classes_before = registry.list_part_classes()
    path = write_parts_file(
        "mine.py", NORM.format(name="mine", what="nothing") + "\n" + text if "class" not in text else text
    )
    with pytest.raises(PartError, match=message):
        registry.load_plugin(path)
    assert registry.list_part_classes() == classes_before
    assert path not in registry.get_plugin_files()


def test_a_file_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(PartError, match=r"nothing\.py: file of parts not found"):
        registry.load_plugin("nothing.py", tmp_path)


@pytest.mark.parametrize(
    ("slot", "value", "message"),
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
            "must be one of 'relu', 'relu-squared', 'gelu', 'gelu-tanh', 'silu', not",
        ),
        ("merge", {"draw": "once"}, "here: a table of options needs kind = the merge"),
    ],
)
def test_invalid_options_are_issues_with_their_location(slot: str, value: Any, message: str) -> None:
    issues = registry.validate_part_config(slot, value, "here")
    assert len(issues) == 1
    with pytest.raises(AssertionError, match=message):
        raise AssertionError(str(issues[0]))


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
def test_valid_options_are_no_issues(slot: str, value: Any) -> None:
    assert registry.validate_part_config(slot, value, "here") == []


def test_building_with_invalid_options_is_an_error() -> None:
    sizes = ModelSizes(width=16, heads=4, head_dim=4, layers=1, context=32, vocab_size=7, is_causal=True)
    with pytest.raises(PartError, match=r"merge\.by: must be a whole number, not 'one'"):
        registry.build_part("merge", base.ComponentConfig(kind="shift", by="one"), sizes)


def test_every_built_in_part_says_what_it_is_in_a_paragraph() -> None:
    classes = registry.list_part_classes()  # other tests may have registered parts of their own
    for part_class in (part_class for part_class in classes if part_class.__module__.startswith("headtohead.")):
        assert part_class.__doc__ is not None
        summary = component_options.get_component_summary(part_class)
        assert 10 < len(summary) < 130 and summary.endswith((".", ")")), part_class


def test_printed_options_are_those_of_an_experiment_file() -> None:
    num_parsed = 0
    for part_class in registry.list_part_classes():
        options = component_options.format_component_options(part_class)
        if "unset" not in options and "(required)" not in options:
            defaults = {name: p.default for name, p in component_options.get_component_options(part_class).items()}
            parsed = tomllib.loads(f"options = {{ {options} }}")["options"]
            assert parsed == {name: list(v) if isinstance(v, tuple) else v for name, v in defaults.items()}
            num_parsed += 1
    assert num_parsed > 30


def test_parts_of_installed_packages_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write_parts_file: Callable[[str, str], Path]
) -> None:
    write_parts_file("installed_parts.py", NORM.format(name="installed", what="nothing"))
    write_parts_file("broken_parts.py", "1 / 0")
    monkeypatch.syspath_prepend(tmp_path)

    def install_entry_point(value: str) -> None:
        entry_point = metadata.EntryPoint("any", value, registry.ENTRY_POINT_GROUP)
        monkeypatch.setattr(
            registry.metadata, "entry_points", lambda group: [entry_point] if group == entry_point.group else []
        )
        monkeypatch.setattr(registry, "_loaded_origins", set())

    install_entry_point("installed_parts")
    assert "installed" in registry.list_part_names("norm")
    install_entry_point("broken_parts")
    with pytest.raises(PartError, match="entry point broken_parts: ZeroDivisionError: division by zero"):
        registry.list_part_names("norm")


def test_a_part_whose_types_cannot_be_resolved_is_still_a_part(write_parts_file: Any) -> None:
    text = "from __future__ import annotations\n" + NORM.format(name="mine", what="nothing").replace(
        "sizes,", "sizes: Unknown,"
    )
    path = write_parts_file("mine.py", "")
    path.write_text(text.replace("annotations\n", "annotations\nfrom headtohead.parts import Norm, register_part\n", 1))
    registry.load_plugin(path)
    assert registry.validate_part_config("norm", {"kind": "mine", "power": 3}, "here") == []
    assert len(registry.validate_part_config("norm", {"kind": "mine", "powr": 3}, "here")) == 1
