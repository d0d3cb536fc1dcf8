"""The public API is sorted, complete, and fast to import. `make lint` checks the layers with import-linter."""

import shutil
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

import headtohead as h2h
from headtohead.errors import ConfigError

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "headtohead"


def test_public_names_are_sorted_and_resolve():
    assert h2h.__all__ == sorted(h2h.__all__)
    for name in h2h.__all__:
        assert getattr(h2h, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        h2h.nothing  # noqa: B018


def test_config_verdict_and_report_do_not_import_torch():
    packages = "headtohead, headtohead.config, headtohead.verdict, headtohead.report"
    code = f"import sys, {packages}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("code", ["from headtohead.cli import main; main()", "import headtohead; headtohead.run"])
def test_windows_is_rejected_with_one_sentence_that_names_wsl(code):
    windows = "import sys, typer; sys.platform = 'win32'; sys.modules['fcntl'] = None; sys.argv = ['h2h', 'recipes']; "
    process = subprocess.run([sys.executable, "-c", windows + code], capture_output=True, text=True, check=False)
    assert process.returncode == (2 if "cli" in code else 1)
    assert process.stderr.splitlines()[-1].endswith("install and run it in WSL (wsl --install).")
    assert ("Traceback" in process.stderr) == ("cli" not in code)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """Build a wheel from a copy of the current sources without network access."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(PACKAGE, source / "src" / "headtohead", ignore=shutil.ignore_patterns("__pycache__"))
    code = f"from setuptools.build_meta import build_wheel; build_wheel({str(out)!r})"
    build = subprocess.run([sys.executable, "-c", code], cwd=source, capture_output=True, text=True, check=False)
    assert build.returncode == 0, build.stderr
    return next(out.glob("*.whl"))


def test_the_wheel_contains_every_file_of_the_package(wheel):
    files = {str(path.relative_to(PACKAGE.parent)) for path in PACKAGE.rglob("*") if path.is_file()}
    assert {name for name in files if not name.endswith(".pyc")} <= set(ZipFile(wheel).namelist())


def test_the_wheel_is_smaller_than_3_mb(wheel):
    assert wheel.stat().st_size < 3e6


GRID = {
    "question": "Which?",
    "task": "language-model",
    "seeds": 2,
    "model.width": 32,
    "training": {"budget": "4 steps"},
}


def test_dotted_and_nested_settings_are_the_same():
    dotted = h2h.experiment_from_dict({**GRID, "variants": {"a.1": {"model.position": "alibi"}}})
    nested = h2h.experiment_from_dict({**GRID, "variants": {"a.1": {"model": {"position": "alibi"}}}})
    assert dotted == nested
    assert (dotted.model.width, dotted.training.budget) == (32, "4 steps")
    assert dotted.variants == {"a.1": {"model": {"position": "alibi"}}}
    both = h2h.experiment_from_dict({**GRID, "model": {"heads": 4}, "model.layers": 1})
    assert (both.model.width, both.model.heads, both.model.layers) == (32, 4, 1)


def test_an_experiment_can_be_varied_and_is_checked_again():
    experiment = h2h.experiment_from_dict(GRID)
    varied = experiment.with_variant("alibi", {"model.position": "alibi"}).with_variant(
        "deep", {"model": {"layers": 6}}
    )
    assert varied.names == ("baseline", "alibi", "deep")
    assert experiment.names == ("baseline",)
    assert varied.with_settings({"training.budget": "8 steps", "seeds": 3}).training.budget == "8 steps"
    with pytest.raises(ConfigError, match="did you mean 'alibi'"):
        experiment.with_variant("typo", {"model.position": "alibbi"})


@pytest.mark.parametrize("name", ["speeches-decoder", "sst2", "distil-decoder", "best-speeches", "sst2-search"])
def test_to_toml_is_an_experiment_file_with_the_same_settings(name, tmp_path):
    experiment = h2h.load_experiment(name)
    path = tmp_path / f"{name}.toml"
    path.write_text(experiment.to_toml())
    assert h2h.load_experiment(path) == experiment
    assert "classifier_hidden" not in experiment.to_toml()  # a default


def test_representations_are_short():
    experiment = h2h.load_experiment("positions")
    assert len(repr(experiment)) < 300
    assert "alibi" in repr(experiment)
    plan = h2h.experiment_from_dict({**GRID, "model.layers": 1, "model.context": 8}).plan(workers=1)
    assert plan.trials == 2
    assert len(repr(plan)) < 200
