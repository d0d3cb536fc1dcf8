"""Render Markdown written by users as HTML, typst or LaTeX. HTML inside it is shown as text, never interpreted.

Formulas between dollar signs are shown as code: typst does not understand LaTeX syntax.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

from markdown_it import MarkdownIt
from markdown_it.rules_inline import StateInline
from markdown_it.tree import SyntaxTreeNode

FORMULA_PATTERN = re.compile(r"\$\$([^$]+)\$\$|\$(?![\s$])([^$\n]*[^$\s])\$(?!\d)")
"""as in pandoc: no space inside the dollar signs, no digit after them, so that "$5 and $6" is not a formula"""


@dataclass(frozen=True)
class MarkupSyntax:
    """How typst or LaTeX expresses Markdown elements. Templates contain `{}` for their content."""

    escape: Callable[[str], str]
    """return text in which nothing is interpreted as a command"""
    code: Callable[[str], str]
    """return inline code"""
    code_block: Callable[[str], str]
    templates: Mapping[str, str]
    """templates for strong, em, paragraph, heading, blockquote, bullet_list, ordered_list and list_item"""


@cache
def _get_markdown_parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"html": False})
    parser.inline.ruler.before("escape", "formula", _parse_dollar_formula)
    return parser


def _parse_dollar_formula(state: StateInline, silent: bool) -> bool:
    """Parse a formula between dollar signs in a user's Markdown as inline code."""
    formula = FORMULA_PATTERN.match(state.src, state.pos)
    if formula is None:
        return False
    if not silent:
        state.push("code_inline", "code", 0).content = " ".join((formula[1] or formula[2]).split())
    state.pos = formula.end()
    return True


def render_user_html(text: str) -> str:
    """Return the user's Markdown as HTML. Raw HTML is escaped, and script links are disabled."""
    return str(_get_markdown_parser().disable("image").render(text))


def render_user_markup(text: str, syntax: MarkupSyntax) -> str:
    """Return the user's Markdown in typst or LaTeX: paragraphs, headings, lists, quotes, code and emphasis."""
    return _render_markdown_node(SyntaxTreeNode(_get_markdown_parser().parse(text)), syntax)


def _render_markdown_node(node: SyntaxTreeNode, syntax: MarkupSyntax) -> str:
    """Render a Markdown syntax tree node and its children."""
    match node.type:
        case "text":
            return syntax.escape(node.content)
        case "softbreak" | "hardbreak":
            return syntax.escape(" ")
        case "code_inline":
            return syntax.code(node.content)
        case "fence" | "code_block":
            return syntax.code_block(node.content)
    content = "".join(_render_markdown_node(child, syntax) for child in node.children)
    template = syntax.templates.get(node.type)
    return template.replace("{}", content) if template else content
