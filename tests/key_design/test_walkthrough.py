"""The walkthrough of a course report reproduces its numbers and compares them with ours."""

import subprocess
import sys

import numpy as np
import pytest
from scipy.special import softmax

from headtohead import key_design
from headtohead.key_design.walkthrough import REPORT_KEYS


@pytest.fixture(scope="module")
def steps():
    return key_design.build_walkthrough().steps


def test_walkthrough_answers_all_six_questions(steps):
    assert [step.solution.exact for step in steps] == [True, True, True, True, False, False]
    assert [step.solution.attained for step in steps[:4]] == [False, False, True, False]
    assert [step.published is not None for step in steps] == [False, False, False, True, True, True]
    assert all(step.limits for step in steps if step.question != "A query that averages all values")


def test_our_average_has_equal_weights_unlike_the_published_one(steps):
    published, ours = steps[3].published, steps[3].solution
    assert np.allclose(published.weights[:2], [0.549, 0.446], atol=5e-4)
    assert ours.weights[0] == pytest.approx(ours.weights[1])
    assert ours.weights[:2].sum() >= 0.999
    assert published.precision < ours.precision
    matched_design = key_design.find_averaging_query(REPORT_KEYS, [0, 1], precision=float(published.weights[:2].sum()))
    assert matched_design.norm == pytest.approx(np.linalg.norm(published.query), rel=0.005), (
        "equal weights need almost the same norm"
    )


def test_key_replacements_use_the_averaging_query(steps):
    average, three_key_average, selection = (step.solution for step in steps[3:])
    assert np.array_equal(average.query, three_key_average.query)
    assert np.array_equal(average.query, selection.query)
    assert np.linalg.norm(selection.key) == pytest.approx(1)
    assert np.ptp(three_key_average.weights[:3]) < 5e-4
    assert selection.weights[2] == pytest.approx(0.657, abs=1e-3)


def test_stated_rounding_bounds_hold_for_perturbed_keys(steps):
    """Keys perturbed at random by up to half a digit stay within the stated bounds."""
    stated_ratio = float(steps[3].limits[1].split()[-1].rstrip("."))
    query, rng = steps[3].solution.query, np.random.default_rng(0)
    max_ratio = 1.0
    for _ in range(2000):
        weights = softmax((np.array(REPORT_KEYS) + rng.uniform(-0.005, 0.005, (4, 3))) @ query)
        max_ratio = max(max_ratio, weights[0] / weights[1], weights[1] / weights[0])
    assert 1.02 < max_ratio <= stated_ratio * (1 + 5e-3)


def test_key_design_does_not_import_torch():
    script = """
import sys, headtohead
assert headtohead.key_design.find_selecting_query([[1, 0], [0, 1]], 0).exact
from headtohead.key_design import build_walkthrough
build_walkthrough()
sys.exit("torch" in sys.modules or "altair" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_public_names_are_sorted_and_exist():
    assert key_design.__all__ == sorted(key_design.__all__, key=lambda name: (not name.isupper(), name.islower(), name))
    for name in key_design.__all__:
        assert getattr(key_design, name) is not None
