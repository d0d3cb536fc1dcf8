"""Render tables, charts and sections of any report: HTML, Markdown, CSV, LaTeX, PDF (typst), terminal, notebook, PNG.

A renderer knows nothing about findings. What a report contains is decided in `headtohead.report`.
"""
