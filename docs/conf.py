"""Configuration of the documentation site: `make docs` builds it without network access, with warnings as errors."""

from __future__ import annotations

import inspect
import sys
from importlib.metadata import version as package_version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from pygments.lexers.special import TextLexer

from tools import reference

project = "Head to Head"
author = "the Head to Head contributors"
copyright = f"{author}, Apache-2.0"
version = release = package_version("headtohead")

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton", "sphinx_design"]
source_suffix = {".md": "myst-nb", ".ipynb": "myst-nb"}
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
nb_execution_mode = "off"  # notebooks are stored with their outputs; tests/test_notebooks.py executes them

default_role = "code"
highlight_language = "none"  # blocks without a language are commands and their output
smartquotes_action = "qe"  # without dashes: options such as --resume stay as they are
autodoc_typehints_format = "short"
autodoc_member_order = "bysource"
python_use_unqualified_type_names = True
maximum_signature_line_length = 80
copybutton_exclude = ".linenos, .gp, .go"

html_theme = "furo"
html_title = "Head to Head"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sphinx = False
html_copy_source = False
html_show_sourcelink = False


def _expand_page(app: Any, name: str, source: list[str]) -> None:
    source[0] = reference.expand_placeholders(source[0])


def _shorten_signature(
    app: Any, kind: str, name: str, documented: Any, options: Any, signature: str | None, result: str | None
) -> tuple[str | None, str | None]:
    """Omit the signatures of pydantic models, whose keys the reference of experiment files describes.

    Where types carry metadata for pydantic, return the names of the parameters only.
    """
    if hasattr(documented, "model_fields"):
        return "", None
    if signature and ("FieldInfo(" in signature or "WithJsonSchema(" in signature):
        return f"({', '.join(inspect.signature(documented).parameters)})", result
    return signature, result


def setup(app: Any) -> None:
    """Insert the generated parts of reference pages."""
    app.connect("autodoc-process-signature", _shorten_signature)
    app.add_lexer("csv", TextLexer)
    app.connect("source-read", _expand_page)
