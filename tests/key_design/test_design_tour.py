"""The walk through report C: its figures come out, and ours are held against them."""

import subprocess
import sys

import numpy as np
import pytest
from scipy.special import softmax

from headtohead import key_design
from headtohead.key_design.guided_tour import REPORT_KEYS


@pytest.fixture(scope="module")
def steps():
    return key_design.build_walkthrough().steps


def test_all_six_questions_are_walked_through(steps):
    assert [step.solution.exact for step in steps] == [True, True, True, True, False, False]
    assert [step.solution.attained for step in steps[:4]] == [False, False, True, False]
    assert [step.published is not None for step in steps] == [False, False, False, True, True, True]
    assert all(step.limits for step in steps if step.question != "A query that averages all values")


def test_the_reports_averaging_target_gives_unequal_weights_and_ours_equal_ones(steps):
    theirs, ours = steps[3].published, steps[3].solution
    assert np.allclose(theirs.weights[:2], [0.549, 0.446], atol=5e-4)
    assert ours.weights[0] == pytest.approx(ours.weights[1])
    assert ours.weights[:2].sum() >= 0.999
    assert theirs.precision < ours.precision
    fair = key_design.find_averaging_query(REPORT_KEYS, [0, 1], precision=float(theirs.weights[:2].sum()))
    assert fair.norm == pytest.approx(np.linalg.norm(theirs.query), rel=0.005), "equal shares cost next to nothing"


def test_the_last_two_questions_use_the_same_query(steps):
    average, three, alone = (step.solution for step in steps[3:])
    assert np.array_equal(average.query, three.query)
    assert np.array_equal(average.query, alone.query)
    assert np.linalg.norm(alone.key) == pytest.approx(1)
    assert np.ptp(three.weights[:3]) < 5e-4
    assert alone.weights[2] == pytest.approx(0.657, abs=1e-3)


def test_what_two_digits_can_hide_is_not_understated(steps):
    """Keys moved at random by up to half a digit stay within what the walk says."""
    said = float(steps[3].limits[1].split()[-1].rstrip("."))
    query, rng = steps[3].solution.query, np.random.default_rng(0)
    most = 1.0
    for _ in range(2000):
        weights = softmax((np.array(REPORT_KEYS) + rng.uniform(-0.005, 0.005, (4, 3))) @ query)
        most = max(most, weights[0] / weights[1], weights[1] / weights[0])
    assert 1.02 < most <= said * (1 + 5e-3)


def test_design_does_not_import_torch():
    code = """
import sys, headtohead
assert headtohead.key_design.find_selecting_query([[1, 0], [0, 1]], 0).exact
from headtohead.key_design import build_walkthrough
build_walkthrough()
sys.exit("torch" in sys.modules or "altair" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_public_names_are_sorted_and_all_there():
    assert key_design.__all__ == sorted(key_design.__all__, key=lambda name: (not name.isupper(), name.islower(), name))
    for name in key_design.__all__:
        assert getattr(key_design, name) is not None
