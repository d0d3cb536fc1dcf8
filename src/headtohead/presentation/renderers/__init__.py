"""Renderers for tables, charts and sections: HTML, Markdown, CSV, LaTeX, PDF (typst), terminal, notebook and PNG."""
