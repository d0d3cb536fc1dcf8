"""Parsing of matrices from text and files, and messages about invalid input."""

import json

import numpy as np
import pytest

from headtohead.errors import RequestError
from headtohead.key_design import inputs, query_design
from headtohead.key_design.key_replacement import replace_key
from headtohead.key_design.walkthrough import build_walkthrough

KEYS = [[1, 0], [0, 1], [-1, -1]]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ([], "keys: there are no rows of numbers"),
        ([[]], "row 0 is empty"),
        ([[1, 2], [3]], "row 1 has 1 number, row 0 has 2"),
        ([[1, 2], [3, float("nan")]], "row 1, number 1: nan is not a finite number"),
        ([[1, 2], [3, float("inf")]], "row 1, number 1: inf is not a finite number"),
        ([[1, 2], [3, "4"]], "row 1, number 1: '4' is not a finite number"),
        ([[1, 2], [3, None]], "row 1, number 1: None is not a finite number"),
        ([[1, 2], [3, True]], "row 1, number 1: True is not a finite number"),
        ([1, 2], "each row must be a list of numbers, as in"),
        (7, "expected rows of numbers such as"),
        ("1 2; 3 4", "expected rows of numbers, got text"),
        (np.zeros((2, 2, 2)), r"row 0, number 0: \[0.0, 0.0\] is not a finite number"),
        (np.array([[1, 2j]]), "is not a finite number"),
        ([[10**400, 1]], "is not a finite number"),
    ],
)
@pytest.mark.parametrize(
    "find",
    [
        lambda keys: query_design.find_selecting_query(keys, 0),
        query_design.find_averaging_query,
        query_design.find_identity_queries,
    ],
)
def test_invalid_keys_are_reported(keys, message, find):
    with pytest.raises(RequestError, match=message):
        find(keys)


def test_all_errors_are_reported_together():
    with pytest.raises(RequestError, match=r"3 errors\n  row 1 has 3 numbers, row 0 has 2\n  .*\n  row 2, number 0"):
        query_design.find_selecting_query([[1, 2], [1, 2, 3], [float("nan"), 2], [1]], 0)
    with pytest.raises(RequestError, match="and 5 more"):
        query_design.find_selecting_query([[1, 2], *([[1]] * 15)], 0)


@pytest.mark.parametrize("i", [3, -1])
def test_indices_out_of_range_are_reported(i):
    with pytest.raises(RequestError, match=rf"there is no key {i}; there are 3 keys, counted from 0"):
        query_design.find_selecting_query(KEYS, i)
    with pytest.raises(RequestError, match=rf"there is no key {i}"):
        query_design.find_averaging_query(KEYS, [0, i])
    with pytest.raises(RequestError, match=rf"there is no key {i}"):
        replace_key(KEYS, [1, 1], i, select=True)


@pytest.mark.parametrize(
    ("find", "message"),
    [
        (lambda: query_design.find_selecting_query(KEYS, 0.5), "expected an integer from 0 to 2, got 0.5"),
        (lambda: query_design.find_selecting_query(KEYS, "0"), "expected an integer from 0 to 2, got '0'"),
        (lambda: query_design.find_averaging_query(KEYS, []), "expected at least one key"),
        (lambda: query_design.find_averaging_query(KEYS, [0, 0]), "key 0 is given twice"),
        (lambda: query_design.find_averaging_query(KEYS, 1), r"expected a list of key indices such as \[0, 1\]"),
        (lambda: query_design.find_query_for_weights(KEYS, [0.5, 0.5]), "target: 2 numbers for 3 keys"),
        (
            lambda: query_design.find_query_for_weights(KEYS, [0.5, 0.7, -0.2]),
            "weight 2 is -0.2; weights must be nonnegative",
        ),
        (
            lambda: query_design.find_query_for_weights(KEYS, [0.5, 0.2, 0.2]),
            "the weights sum to 0.9; they must sum to 1",
        ),
        (lambda: query_design.find_query_for_weights(KEYS, [0, 0, 0]), "the weights sum to 0"),
        (
            lambda: query_design.find_query_for_weights(KEYS, [0.5, float("nan"), 0.5]),
            "number 1: nan is not a finite number",
        ),
        (lambda: query_design.find_query_for_weights(KEYS, 3), "target: expected a list of numbers, got 3"),
        (
            lambda: query_design.find_selecting_query(KEYS, 0, precision=1),
            "precision: must be strictly between 0 and 1",
        ),
        (
            lambda: query_design.find_selecting_query(KEYS, 0, precision=0),
            "precision: must be strictly between 0 and 1",
        ),
        (
            lambda: query_design.find_selecting_query(KEYS, 0, precision="high"),
            "precision: must be strictly between 0 and 1.*'high'",
        ),
        (
            lambda: query_design.find_selecting_query(KEYS, 0, tolerance=1),
            "tolerance: must be between 1e-13 and 0.01, got 1",
        ),
        (
            lambda: query_design.find_selecting_query(KEYS, 0, values=[[1], [2]]),
            "values: 2 rows for 3 keys; each key has one",
        ),
        (lambda: replace_key(KEYS, [1], 0, select=True), "query: 1 number for 2 numbers of a key"),
        (
            lambda: replace_key(KEYS, [1, 1], 0),
            "pass exactly one of average, select and weights; got none",
        ),
        (
            lambda: replace_key(KEYS, [1, 1], 0, select=True, average=[0]),
            "pass exactly one of average, select and weights; got average and select",
        ),
        (
            lambda: replace_key(KEYS, [1, 1], 0, select=True, required_norm=-1),
            "required_norm: must be at least 0, got -1",
        ),
    ],
)
def test_invalid_arguments_are_reported(find, message):
    with pytest.raises(RequestError, match=message):
        find()


def test_keys_may_be_arrays_lists_tuples_or_tensors():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    query = query_design.find_selecting_query(KEYS, 0).query
    for keys in (np.array(KEYS), tuple(map(tuple, KEYS)), torch.tensor(KEYS), [np.array(key) for key in KEYS]):
        assert np.array_equal(query_design.find_selecting_query(keys, np.int64(0)).query, query)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("keys.csv", "1,0\n0,1\n-1,-1\n"),
        ("keys.csv", "\ufeff# the keys\n1, 0\n\n0, 1  # the second\n-1, -1"),
        ("keys.tsv", "1\t0\n0\t1\n-1\t-1\n"),
        ("keys.txt", "1 0\n0 1\n-1 -1"),
        ("keys.json", "[[1, 0], [0, 1], [-1, -1]]"),
        ("keys.json", '{"keys": [[1, 0], [0, 1], [-1, -1]], "values": [[1], [2], [3]]}'),
    ],
)
def test_matrix_is_read_from_files(tmp_path, name, text):
    (tmp_path / name).write_text(text, encoding="utf-8")
    assert inputs.read_matrix(tmp_path / name).tolist() == KEYS
    assert inputs.read_matrix(str(tmp_path / name)).tolist() == KEYS


@pytest.mark.parametrize("text", ["1 0; 0 1; -1 -1", "1,0;0,1;-1,-1;", "[[1, 0], [0, 1], [-1, -1]]", "1 0\n0 1\n-1 -1"])
def test_matrix_is_read_from_text(text):
    assert inputs.read_matrix(text).tolist() == KEYS


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("keys.csv", "", r"keys: .*keys.csv: there are no rows of numbers"),
        ("keys.csv", "# nothing\n", "there are no rows of numbers"),
        ("keys.csv", "1,2\n3,\n", r"keys.csv \(rows and numbers count from 0\): row 1, number 1: ''"),
        ("keys.csv", "x,y\n1,2\n", "2 errors\n  row 0, number 0: 'x' is not a finite number"),
        ("keys.json", "[[1, 2], [3", r"keys.json: is not valid JSON \(line 1"),
        ("keys.json", '{"queries": []}', "an object with 'keys', got an object with queries"),
        ("keys.json", '{"keys": 3}', "expected rows of numbers"),
        ("keys.json", "[[1, 2], 3]", "each row must be a list of numbers"),
    ],
)
def test_invalid_files_are_reported(tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(RequestError, match=message):
        inputs.read_matrix(tmp_path / name)


def test_missing_and_binary_files_are_reported(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "keys.csv").write_bytes(b"\xff\xfe1,2")
    with pytest.raises(RequestError, match="is not UTF-8 text"):
        inputs.read_matrix("keys.csv")
    with pytest.raises(RequestError, match=r"kyes.csv: no such file; did you mean 'keys.csv'\?"):
        inputs.read_matrix("kyes.csv")
    with pytest.raises(RequestError, match="cannot be read"):
        inputs.read_matrix(tmp_path)


def test_solutions_are_immutable_and_convert_to_json():
    replacement = replace_key(KEYS, [1, 1], 2, select=True, values=KEYS)
    with pytest.raises(AttributeError, match="cannot assign"):
        replacement.exact = True
    for solution in (
        replacement,
        query_design.find_selecting_query(KEYS, 0),
        query_design.find_identity_queries(KEYS, values=KEYS),
        build_walkthrough(),
    ):
        solution_dict = json.loads(json.dumps(solution.to_dict(), allow_nan=False))
        assert {"kind", "question", "exact", "reason", "precision"} <= set(solution_dict)
        assert solution.question in repr(solution)
