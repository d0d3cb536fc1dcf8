"""The session of a target: its mutants and their results."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.ast.ast_query import ASTQuery
from cosmic_ray.plugins import get_operator, operator_names
from cosmic_ray.work_db import WorkDB
from cosmic_ray.work_item import MutationSpec, WorkItem


def list_mutants(modules: Sequence[Path]) -> Iterator[WorkItem]:
    """Yield every mutant that cosmic-ray's operators without arguments make of the modules.

    The id of a mutant is a digest of its module and of the mutation, so results stay valid while a module is unchanged.
    """
    operators = {name: get_operator(name) for name in operator_names()}
    for path in modules:
        source = path.read_text(encoding="utf-8")
        nodes = list(ast_nodes(get_ast(source)))
        for name, operator_class in operators.items():
            if operator_class.arguments():
                continue
            operator = operator_class()
            positions = [(node, position) for node in nodes for position in operator.mutation_positions(node)]
            for occurrence, (node, (start, end)) in enumerate(positions):
                digest = hashlib.sha256(f"{path}\n{name}\n{occurrence}\n{source}".encode()).hexdigest()
                definition = ASTQuery(node).get_definition_name()
                mutation = MutationSpec(path, name, occurrence, start, end, definition_name=definition)
                yield WorkItem.single(digest[:32], mutation)


def update_session(
    database: WorkDB, modules: Sequence[Path], sample: int, seed: int, *, reruns_survivors: bool
) -> list[WorkItem]:
    """Update the session to the current code and return the mutants without a result.

    Results of unchanged modules remain. With `reruns_survivors`, return those that survived.
    """
    items = list(list_mutants(modules))
    if sample:
        items = random.Random(seed).sample(items, min(sample, len(items)))
    current_ids = {item.job_id for item in items}
    results = {job_id: result for job_id, result in database.results if job_id in current_ids}
    database.clear()
    database.add_work_items(items)
    for job_id, result in results.items():
        database.set_result(job_id, result)
    if reruns_survivors:
        return [item for item in items if item.job_id in results and not results[item.job_id].is_killed]
    return [item for item in items if item.job_id not in results]
