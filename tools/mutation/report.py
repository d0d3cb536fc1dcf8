"""Mutation scores and survivors of a session."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from cosmic_ray.work_db import WorkDB, use_db
from cosmic_ray.work_item import TestOutcome
from scipy.stats import binomtest


def format_report(session: Path) -> str:
    """Return a table of the results by module, the total with its 95 % interval, and all survivors."""
    with use_db(str(session), WorkDB.Mode.open) as database:
        completed = database.completed_work_items
        num_mutants = database.num_work_items
    # killed and surviving mutants by module
    outcome_counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    survivors = []
    for item, result in completed:
        mutation = item.mutations[0]
        has_survived = result.test_outcome is TestOutcome.SURVIVED
        outcome_counts[str(mutation.module_path)][has_survived] += 1
        if has_survived:
            survivors.append((str(mutation.module_path), mutation.start_pos, mutation.operator_name, result.diff))
    lines = ["| module | mutants | killed | survived | score |", "|---|---|---|---|---|"]
    for module, (num_killed, num_survived) in sorted(outcome_counts.items()):
        num_completed = num_killed + num_survived
        score = 100 * num_killed / num_completed
        lines.append(f"| {module} | {num_completed} | {num_killed} | {num_survived} | {score:.1f} % |")
    num_killed, num_completed = sum(killed for killed, _ in outcome_counts.values()), len(completed)
    if num_completed:
        interval = binomtest(num_killed, num_completed).proportion_ci(0.95, method="exact")
        total_score = (
            f"{num_killed} of {num_completed} mutants killed: {100 * num_killed / num_completed:.1f} % (95 % interval "
            f"{100 * interval.low:.1f} to {100 * interval.high:.1f}); {num_mutants - num_completed} not run yet"
        )
        lines += ["", total_score]
    lines += [f"{module}:{diff}  [{operator.partition('/')[2]}]" for module, _, operator, diff in sorted(survivors)]
    return "\n".join(lines)
