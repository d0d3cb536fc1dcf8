"""Write and execute the notebooks of the documentation: `python -m tools.notebooks` stores them with their outputs."""

from __future__ import annotations

import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

NOTEBOOKS_FOLDER = Path(__file__).parents[1] / "docs" / "notebooks"
TIMEOUT_SECONDS = 600


def execute_notebook(path: Path) -> nbformat.NotebookNode:
    """Execute a notebook in an empty folder and return it with its outputs. Raise an error if a cell fails."""
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        resources = {"metadata": {"path": folder}}
        NotebookClient(notebook, timeout=TIMEOUT_SECONDS, kernel_name="python3", resources=resources).execute()
    return notebook


def write_outputs(path: Path) -> None:
    """Execute a notebook and store it with its outputs, without progress bars and execution times."""
    notebook = execute_notebook(path)
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if not _is_progress_output(output)]
    nbformat.write(notebook, path)


def _is_progress_output(output: nbformat.NotebookNode) -> bool:
    """Return whether an output is a progress bar or a warning, which differ between executions."""
    return "<progress " in output.get("data", {}).get("text/html", "") or output.get("name") == "stderr"


if __name__ == "__main__":
    for notebook_path in sorted(NOTEBOOKS_FOLDER.glob("*.ipynb")):
        write_outputs(notebook_path)
        print(notebook_path.name)
