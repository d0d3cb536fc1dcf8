"""End-to-end tests of `h2h design`."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.special import softmax

from .test_bad_input import h2h  # noqa: F401

KEYS = "1 0; 0 1; -1 -1"


@pytest.fixture
def call(h2h, monkeypatch):  # noqa: F811
    monkeypatch.setenv("COLUMNS", "80")
    return h2h


def test_select_says_the_query_the_weights_and_why(call):
    code, out, err = call("design", "select", KEYS, "0")
    assert code == 0, err
    assert out.startswith("Select key 0: exact in the limit\n")
    assert "vertex of the convex hull" in out and "0.999" in out
    assert max(map(len, out.splitlines())) <= 80


def test_json_has_everything_and_the_query_does_what_it_says(call):
    code, out, _ = call("design", "select", KEYS, "0", "--precision", "0.9", "--values", "1;2;3", "--json")
    assert code == 0
    row = json.loads(out)
    assert softmax(np.array(row["keys"]) @ row["query"])[0] >= 0.9
    assert row["exact"] is True and row["attained"] is False
    assert row["output"][0] == pytest.approx(np.dot(row["weights"], [1, 2, 3]))


def test_keys_may_begin_with_a_minus(call):
    code, out, _ = call("design", "select", "-1 0; 1 0; 0 0", "2")
    assert code == 0
    assert "it equals 0.5 key 0 + 0.5 key 1" in " ".join(out.split())


def test_every_command_prints_a_result(call):
    Path("keys.csv").write_text("1,0\n0,1\n-1,-1\n")
    replace_key = ("replace-key", "keys.csv", "2")
    for words, outcome in (
        (("average", "keys.csv"), "Average all keys: exact"),
        (("average", "keys.csv", "0,1"), "Average keys 0 and 1: exact in the limit"),
        (("weights", "keys.csv", "0.5 0.3 0.2"), "Weights 0.5, 0.3, 0.2: exact"),
        (("identity", "keys.csv"), "Identity: row i selects key i: exact in the limit"),
        ((*replace_key, "--query", "-3 0", "--attend-to-new-key"), "Replace key 2 to be selected"),
        ((*replace_key, "--query", "1 1", "--attend-equally-to", "all"), "Replace key 2 to average keys 0, 1"),
        ((*replace_key, "--query", "1 1", "--attention-weights", "0.2,0.2,0.6", "--key-norm", "2"), "norm 2"),
    ):
        code, out, err = call("design", *words)
        assert code == 0, err
        assert outcome in out.splitlines()[0]
        assert max(map(len, out.splitlines())) <= 80


def test_the_tour_fits_the_terminal_and_gives_both_answers(call):
    code, out, _ = call("design", "tour")
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80
    for words in ("0.5491", "0.446", "limits", "the report", "6. A new third key of norm 1"):
        assert words in out
    code, out, _ = call("design", "tour", "--json")
    assert len(json.loads(out)["steps"]) == 6


@pytest.mark.parametrize("name", ["p.svg", "p.pdf", "p.png", "p.html"])
def test_a_picture_is_written_where_it_was_asked_for(call, name):
    code, out, err = call("design", "select", KEYS, "1", "--out", name)
    assert code == 0, err
    assert out.splitlines()[-1] == f"picture: {name}"
    assert Path(name).stat().st_size > 1000


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("select", "1 0; 0", "0"), "row 1 has 1 number, row 0 has 2"),
        (("select", "1 0; 0 x", "0"), "row 1, number 1: 'x' is not a finite number"),
        (("select", "1 0; 0 nan", "0"), "row 1, number 1: nan is not a finite number"),
        (("select", KEYS, "3"), "there is no key 3; there are 3 keys, counted from 0"),
        (("select", KEYS, "-1"), "there is no key -1"),
        (("select", "", "0"), "there are no rows of numbers"),
        (("select", "none.csv", "0"), "none.csv: no such file"),
        (("average", KEYS, "0,q"), "expected key indices such as 0,1, or all; got '0,q'"),
        (("weights", KEYS, "0.5 0.5"), "2 numbers for 3 keys"),
        (("weights", KEYS, "0.5 0.5; 1 0"), "expected one row of numbers, got 2"),
        (("select", KEYS, "0", "--precision", "1"), "must be strictly between 0 and 1"),
        (("select", KEYS, "0", "--out", "p.gif"), "unsupported file extension '.gif'"),
        (("select", KEYS, "0", "--jsn"), "--jsn"),
        (
            ("replace-key", KEYS, "0", "--query", "1 1"),
            "give exactly one of --attend-to-new-key, --attend-equally-to, --attention-weights; got none",
        ),
        (("replace-key", KEYS, "0", "--query", "1 1 1", "--attend-to-new-key"), "3 numbers for 2 numbers of a key"),
    ],
)
def test_a_wrong_request_ends_with_2_and_leaves_nothing(call, words, said):
    code, out, err = call("design", *words)
    assert code == 2
    assert out == ""
    assert said in err
    assert "Traceback" not in err
    assert list(Path().iterdir()) == []


def test_help_needs_nothing_heavy():
    code = (
        "import sys; sys.argv = ['h2h', 'design', '--help']\n"
        "from headtohead import cli\n"
        "try:\n    cli.main()\nexcept SystemExit:\n    pass\n"
        "sys.exit(bool({'torch', 'scipy', 'numpy', 'altair'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False, env={**os.environ})
    assert result.returncode == 0
