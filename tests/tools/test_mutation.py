"""The targets of mutation testing exist; a renamed module or test file would otherwise be skipped silently."""

from pathlib import Path

import pytest
from tools.mutation.targets import MUTATION_TARGETS

PROJECT_ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", MUTATION_TARGETS)
def test_patterns_of_a_target_match_files(name):
    target = MUTATION_TARGETS[name]
    unmatched_patterns = [pattern for pattern in (*target.modules, *target.tests) if not [*PROJECT_ROOT.glob(pattern)]]
    assert not unmatched_patterns
