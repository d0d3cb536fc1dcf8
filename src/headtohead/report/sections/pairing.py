"""Sections on pairing: evidence that variants and baseline were trained under equal conditions, and their costs."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any

from headtohead.config.experiment import BASELINE
from headtohead.experiment.schemas import Findings, PairingRecord
from headtohead.presentation import number_format
from headtohead.presentation.section import Section, make_table_blocks
from headtohead.presentation.table import Cell, Table, make_numeric_columns, make_table, make_text_columns
from headtohead.report.context import ReportContext

COST_FORMATTERS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "parameters": ("parameters", number_format.format_count),
    "flops_per_token": ("FLOPs per token", number_format.format_si_number),
    "seconds_per_step": ("time per step", number_format.format_seconds),
    "seconds_per_epoch": ("time per epoch", number_format.format_seconds),
    "peak_memory": ("peak memory", number_format.format_bytes),
}
"""title and format of each cost in a `PairingRecord`"""


def build_cost_section(context: ReportContext) -> Section | None:
    """Return the section on the costs of the baseline and each variant."""
    blocks = make_table_blocks(build_cost_table(context.findings))
    return Section("cost", "Cost", blocks, "Cost") if blocks else None


def build_pairing_section(context: ReportContext) -> Section | None:
    """Return the evidence that each variant starts from the baseline's weights and sees the same batches."""
    blocks = make_table_blocks(build_pairing_table(context.findings))
    is_complete = not list_unpaired_variants(context.findings)
    summary = "Every variant starts from the weights that it shares with the baseline and sees the same batches."
    section = Section("pairing", "Proof of pairing", blocks, "Pairing", summary=summary if is_complete else "")
    return section if blocks else None


def list_unpaired_variants(findings: Findings) -> list[str]:
    """Return the variants whose initial weights or batches differ from the baseline's."""
    return [name for name, pair in findings.pairing.items() if not is_paired(pair)]


def is_paired(pair: PairingRecord) -> bool:
    """Return whether every shared tensor was equal at step 0 and the batches were the same."""
    return pair.shared_tensors is not None and pair.shared_tensors == pair.equal_tensors and bool(pair.same_batches)


def build_cost_table(findings: Findings) -> Table:
    """Return the parameters, time and memory of the baseline and each paired variant, with ratios to the baseline."""
    columns = make_text_columns("variant")
    pairs = list(findings.pairing.items())
    cost_names = [name for name in COST_FORMATTERS if any(getattr(pair, name) for _, pair in pairs)]
    for cost_name in cost_names:
        title, formatter = COST_FORMATTERS[cost_name]
        columns += make_numeric_columns({cost_name: title}, format=formatter)
        columns += make_numeric_columns({f"{cost_name}_ratio": "ratio"}, is_optional=True)
    rows: list[list[Any]] = []
    for index, (name, pair) in enumerate([*pairs[:1], *pairs]):
        costs = [getattr(pair, cost_name) or (None, None) for cost_name in cost_names]
        if index == 0:
            rows.append([BASELINE, *chain.from_iterable((cost[0], Cell("", cost[0] and 1.0)) for cost in costs)])
        else:
            rows.append([name, *chain.from_iterable((cost[1], _make_cost_ratio_cell(cost)) for cost in costs)])
    caption = "Time and memory are medians over runs. Ratios are relative to the baseline."
    return make_table("cost", "Cost", caption, columns, rows)


def _make_cost_ratio_cell(cost: tuple[float | None, float | None]) -> Cell:
    return Cell(number_format.format_ratio(cost), number_format.compute_ratio(cost))


def build_pairing_table(findings: Findings) -> Table:
    """Return one row per variant: shared tensors, tensors equal at step 0, and whether the batches are the same."""
    columns = make_text_columns("variant")
    columns += make_numeric_columns(shared="shared tensors", equal="equal at step 0", format=number_format.format_count)
    columns += make_text_columns(schedule="same batches", meaning="meaning")
    rows = []
    for name, pair in findings.pairing.items():
        meaning = "paired: the two runs differ only in what the variant changes"
        if not is_paired(pair):
            meaning = "not paired: the two runs differ in more than what the variant changes"
        same_batches = Cell("yes" if pair.same_batches else "no", pair.same_batches)
        rows.append([name, pair.shared_tensors, pair.equal_tensors, same_batches, meaning])
    caption = "Initial weights that variant and baseline share, compared by hash, and the batches of both."
    return make_table("pairing", "Proof of pairing", caption, columns, rows)
