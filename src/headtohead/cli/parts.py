"""`h2h parts`: list the available parts; `h2h parts check`: run the conformance suite on custom parts."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from headtohead.cli.app import JsonOption, PluginsOption, app, print_json
from headtohead.errors import RequestError, format_suggestion

if TYPE_CHECKING:
    from headtohead.audit.result import PartCheckResult

_LIST_COMMAND = "list"


class _PartsGroup(TyperGroup):
    """Commands of `h2h parts`. An argument that is not a command is a slot whose parts are listed."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[Any, Any, list[str]]:
        return super().resolve_command(ctx, args if args[0] in self.commands else [_LIST_COMMAND, *args])


parts_app = typer.Typer(
    cls=_PartsGroup,
    help="List the parts of models and training, or check your own.",
    subcommand_metavar="[SLOT... | check FILE]",
    rich_markup_mode=None,
)
app.add_typer(parts_app, name="parts")


@parts_app.callback(invoke_without_command=True)
def list_all_parts(context: typer.Context, as_json: JsonOption = False, plugins: PluginsOption = None) -> None:
    """List the parts that models and their training are built from, by slot, with their options."""
    if context.invoked_subcommand is None:
        _print_available_parts((), as_json, plugins or ())


@parts_app.command(_LIST_COMMAND, hidden=True)
def list_slots(
    context: typer.Context,
    slots: Annotated[list[str], typer.Argument(metavar="SLOT", help="Slot, such as norm.")],
    as_json: JsonOption = False,
    plugins: PluginsOption = None,
) -> None:
    """List the parts of the given slots."""
    options = context.parent.params if context.parent is not None else {}  # those before the slot
    _print_available_parts(slots, as_json or options["as_json"], plugins or options["plugins"] or ())


def _print_available_parts(slots: Sequence[str], as_json: bool, plugins: Sequence[str]) -> None:
    """Print the parts of the given slots, by default of all."""
    from headtohead.config.validation.component_options import format_component_options, get_component_summary
    from headtohead.nn.parts import registry

    if unknown_slots := [slot for slot in slots if slot not in registry.SLOTS]:
        hint = format_suggestion(unknown_slots[0], [*registry.SLOTS, "check"])
        allowed = f"slots: {', '.join(registry.SLOTS)}; or check FILE"
        raise RequestError(f"there is no slot {unknown_slots[0]!r}{hint} ({allowed})")
    for file in plugins:
        registry.load_plugin(file)
    rows = [
        {
            "slot": part_class.slot,
            "part": part_class.kind,
            "options": format_component_options(part_class),
            "about": get_component_summary(part_class),
        }
        for part_class in registry.list_part_classes()
        if not slots or part_class.slot in slots
    ]
    print_json(rows) if as_json else _print_part_tables(rows)


def _print_part_tables(parts: Sequence[dict[str, str]]) -> None:
    """Print the tables of `h2h parts`: the options and description of each part, by slot."""
    from headtohead.presentation.renderers.terminal import print_text_table

    for slot, slot_parts in itertools.groupby(parts, key=lambda part: part["slot"]):
        rows = [
            (part["part"], part["about"] + (f"\noptions: {part['options']}" if part["options"] else ""))
            for part in slot_parts
        ]
        print_text_table(("part", "description and options"), rows, title=slot)


@parts_app.command("check")
def check_parts(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Python file that defines custom parts.")],
    as_json: JsonOption = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Print one row per check, with its measurement.")] = False,
) -> None:
    """Run the conformance suite on the custom parts in a file.

    It checks gradients, causality, the KV cache, attention implementations and padding, among others.
    """
    from headtohead.testing import check_part_file

    results = check_part_file(file)
    if as_json:
        print_json([result.to_dict() for result in results])
    else:
        _print_conformance_results(results, verbose=verbose)
    if not all(result.passed for result in results):
        raise typer.Exit(1)


def _print_conformance_results(check_results: Sequence[PartCheckResult], *, verbose: bool = False) -> None:
    """Print one row per part, and each distinct failure once; with `verbose`, print one row per check instead."""
    from headtohead.presentation.renderers.terminal import get_stdout_console, print_text_table

    if verbose:
        rows = [
            (result.part, result.setup, result.name, "passed" if result.passed else "failed", result.observation)
            for result in check_results
        ]
        print_text_table(("part", "model", "check", "result", "detail"), rows)
    else:
        results_by_part: dict[str, list[PartCheckResult]] = {}
        for result in check_results:
            results_by_part.setdefault(result.part, []).append(result)
        for part, results in results_by_part.items():
            failures = [result for result in results if not result.passed]
            outcome = (
                f"{len(failures)} of {len(results)} checks failed" if failures else f"{len(results)} checks passed"
            )
            get_stdout_console().print(f"{part}: {outcome}", markup=False, highlight=False, soft_wrap=True)
            for observation in dict.fromkeys(result.observation for result in failures):
                checks = dict.fromkeys(
                    f"{result.name} ({result.setup})" for result in failures if result.observation == observation
                )
                console_text = f"  {', '.join(checks)}\n    {observation}"
                get_stdout_console().print(console_text, markup=False, highlight=False, soft_wrap=True)
    num_failed = sum(not result.passed for result in check_results)
    get_stdout_console().print(f"{len(check_results) - num_failed} checks passed, {num_failed} failed")
