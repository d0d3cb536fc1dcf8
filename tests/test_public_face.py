"""The public face: small, sorted, and light to import."""

import subprocess
import sys

import pytest

import headtohead as h2h


def test_public_names_are_sorted_and_all_there():
    assert h2h.__all__ == sorted(h2h.__all__)
    for name in h2h.__all__:
        assert getattr(h2h, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        h2h.nothing  # noqa: B018


def test_importing_the_package_spec_and_verdict_does_not_import_torch():
    rooms = "headtohead, headtohead.config, headtohead.verdict, headtohead.report"
    code = f"import sys, {rooms}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_rooms_know_only_the_rooms_below_them():
    """The arrows of docs/architecture.md: who may import whom."""
    import ast
    from pathlib import Path

    below = {
        "spec": {"errors"},
        "parts": {"errors", "spec"},
        "model": {"errors", "spec", "parts", "streams"},
        "corpus": {"errors", "spec", "streams", "files", "pace"},
        "train": {"errors", "spec", "parts", "model", "corpus", "streams", "files"},
        "decode": {"errors", "model", "streams", "spec", "parts", "verdict"},
        "audit": {"errors", "spec", "parts", "model", "corpus", "streams"},
        "look": {"errors", "spec", "parts", "model", "audit", "streams"},
        "verdict": {"errors", "spec"},
        "report": {"errors", "spec", "lab", "files", "verdict", "pace"},
        # Of what needs torch, only the model process knows.
        "serve": {
            *("errors", "files", "pace", "spec", "lab", "report"),
            *("parts", "look", "looking", "decode", "model", "train"),
        },
    }
    root = Path(h2h.__file__).parent
    for room, allowed in below.items():
        for file in (root / room).rglob("*.py"):
            tree = ast.parse(file.read_text())
            for node in ast.walk(tree):
                names = _imported(node, file.relative_to(root).parts)
                known = {name.split(".")[0] for name in names} & {p.stem for p in root.iterdir()}
                assert known <= {*allowed, room}, f"{file}: {known - allowed - {room}}"


def _imported(node: object, place: tuple[str, ...]) -> list[str]:
    """The modules of the package that an import statement names, without the package's own name."""
    import ast

    if isinstance(node, ast.ImportFrom):
        if node.level:
            above = place[:-1][: len(place) - node.level]
            base = ".".join([*above, *([node.module] if node.module else [])])
            return [base] if base else [alias.name for alias in node.names]
        if node.module == "headtohead":
            return [alias.name for alias in node.names]
        if node.module and node.module.startswith("headtohead."):
            return [node.module.removeprefix("headtohead.")]
    if isinstance(node, ast.Import):
        return [a.name.removeprefix("headtohead.") for a in node.names if a.name.startswith("headtohead.")]
    return []
