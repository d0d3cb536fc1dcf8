"""Strict JSON, JSON Lines and their checksums."""

import hashlib
import json

import pytest

from headtohead import json_files, safe_open
from headtohead.errors import RunFolderError


def test_json_is_indented_and_ends_with_a_line_break(tmp_path):
    json_files.write_json(tmp_path / "a.json", {"b": [1]})
    assert (tmp_path / "a.json").read_text() == '{\n "b": [\n  1\n ]\n}\n'
    with pytest.raises(ValueError, match="not JSON compliant"):
        json_files.write_json(tmp_path / "a.json", {"b": float("nan")})


def test_the_checksum_is_the_last_entry_and_covers_all_others(tmp_path):
    json_files.write_json(tmp_path / "a.json", {"z": 1, "a": 2}, with_checksum=True)
    content = json.loads((tmp_path / "a.json").read_text())
    expected = hashlib.sha256(b'{"a": 2, "z": 1}').hexdigest()
    assert list(content) == ["z", "a", "checksum"]
    assert content["checksum"] == expected == json_files.compute_json_checksum(content)
    assert json_files.compute_json_checksum(content, "x") == hashlib.sha256(b'x{"a": 2, "z": 1}').hexdigest()
    json_files.verify_json_checksum(tmp_path / "a.json", "remedy")
    content["a"] = 3
    json_files.write_json(tmp_path / "a.json", content)
    with pytest.raises(RunFolderError, match=r"a\.json is corrupted: checksum mismatch; remedy$"):
        json_files.verify_json_checksum(tmp_path / "a.json", "remedy")


def test_a_checksum_under_a_damaged_key_is_detected():
    value = {"a": 1}
    checksum = json_files.compute_json_checksum(value)
    assert json_files.has_valid_json_checksum({**value, "checksum": checksum})
    for other in ("", "0" * 64, "f" * 64):
        assert not json_files.has_valid_json_checksum({**value, "checksum": other})
        assert json_files.has_valid_json_checksum({**value, "checksun": other})
    assert not json_files.has_valid_json_checksum({**value, "checksun": checksum})
    assert json_files.has_valid_json_checksum(value)
    assert json_files.has_valid_json_checksum({})
    assert json_files.has_valid_json_checksum({**value, "digest": "0" * 64})
    assert json_files.has_valid_json_checksum({"digest": checksum, **value})
    assert json_files.has_valid_json_checksum({**value, "number": 64})


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        (b"{", r"Expecting property name"),
        (b'"\xff"', r"codec can't decode"),
        (b'"\\ud800"', r"surrogates not allowed"),
        (b'{"\\ud800": 1}', r"surrogates not allowed"),
        (b"NaN", r"NaN is not a number"),
        (b"[-Infinity]", r"-Infinity is not a number"),
        (b"1e999", r"1e999 is not a number"),
        (b"9223372036854775809", r"9223372036854775809 is too large a number"),
        (b"[-9223372036854775809]", r"is too large a number"),
        (b"1" * 5000, r"integer string conversion"),
        (b"[" * 64 + b"1" + b"]" * 64, r"values are nested too deep"),
        (b"[" * 100_000, r"values are nested too deep"),
        (b'{"a": 1, "b": {"c": 1, "c": 2}}', r"the key 'c' occurs twice"),
    ],
)
def test_json_that_others_wrote_is_checked(raw, problem):
    with pytest.raises(RunFolderError, match=rf"^source is corrupted: .*{problem}"):
        json_files.parse_json(raw, "source")


def test_valid_json_is_read():
    nested = b"[" * 63 + b"1" + b"]" * 63
    assert json.dumps(json_files.parse_json(nested, "source")).encode() == nested
    many_keys = {str(number): number for number in range(1000)}
    assert json_files.parse_json(json.dumps(many_keys).encode(), "source") == many_keys
    value = {"a": [1.5, -(2**63), 2**63, None, True, "ä"], "b": {}}
    assert json_files.parse_json(json.dumps(value).encode(), "source") == value
    assert json_files.parse_json(b"[Infinity, 1e999]", "source", require_finite=False) == [float("inf")] * 2
    with pytest.raises(RunFolderError, match="occurs twice"):
        json_files.parse_json(b'{"a": NaN, "a": 1}', "source", require_finite=False)


def test_long_numbers_are_shortened_in_messages():
    with pytest.raises(RunFolderError, match="is too large") as error:
        json_files.parse_json(b"9" * 4000, "source")
    assert len(str(error.value)) < 300


def test_an_object_is_expected(tmp_path):
    path = tmp_path / "a.json"
    path.write_text("[1]")
    assert json_files.read_json(path) == [1]
    with pytest.raises(RunFolderError, match=r"a\.json is corrupted: expected a JSON object, got \[1\]$"):
        json_files.read_json_object(path)
    path.write_text(json.dumps(["x" * 1000]))
    with pytest.raises(RunFolderError, match="expected a JSON object") as error:
        json_files.read_json_object(path)
    assert len(str(error.value)) < 300 + len(str(path))


def test_complete_lines_are_read_and_the_others_removed(tmp_path):
    path = tmp_path / "lines"
    assert json_files.read_jsonl(path) == []
    assert json_files.repair_jsonl(path) == []
    assert not path.exists()
    for number in range(3):
        json_files.append_jsonl(path, {"n": number})
    content = path.read_bytes()
    assert content == b'{"n": 0}\n{"n": 1}\n{"n": 2}\n'
    path.write_bytes(content + b'{"n": 3}')
    rows = [{"n": 0}, {"n": 1}, {"n": 2}]
    assert json_files.read_jsonl(path) == rows
    assert path.read_bytes() == content + b'{"n": 3}', "reading changes nothing"
    assert json_files.repair_jsonl(path) == rows
    assert path.read_bytes() == content
    assert json_files.repair_jsonl(path) == rows
    path.write_bytes(b'{"n": 0}\n\n{"n": NaN}\n')
    assert len(json_files.read_jsonl(path)) == 2, "empty lines are skipped, and logs may contain NaN"


def test_the_line_that_is_damaged_is_reported(tmp_path):
    path = tmp_path / "lines"
    path.write_bytes(b"{}\n[1]\n")
    with pytest.raises(RunFolderError, match=r"lines, line 2 is corrupted: expected a JSON object$"):
        json_files.read_jsonl(path)
    path.write_bytes(b"{}\n\n{\n")
    with pytest.raises(RunFolderError, match=r"lines, line 3 is corrupted: Expecting"):
        json_files.read_jsonl(path)


def test_the_size_of_lines_is_limited_unless_they_are_our_own(tmp_path, monkeypatch):
    monkeypatch.setattr(safe_open, "MAX_FILE_BYTES", 10)
    path = tmp_path / "lines"
    path.write_bytes(b'{"number": 1}\n')
    with pytest.raises(RunFolderError, match="at most 10 are read"):
        json_files.read_jsonl(path)
    with pytest.raises(RunFolderError, match="at most 10 are read"):
        json_files.repair_jsonl(path)
    assert json_files.read_jsonl(path, is_own_cache=True) == [{"number": 1}]
    assert json_files.repair_jsonl(path, is_own_cache=True) == [{"number": 1}]


def test_the_values_of_all_lines_are_limited_unless_they_are_our_own(tmp_path, monkeypatch):
    monkeypatch.setattr(json_files, "MAX_JSON_VALUES", 3)
    path = tmp_path / "lines"
    path.write_bytes(b'{"n": 1}\n' * 4)
    with pytest.raises(RunFolderError, match="lines has more than 3 values"):
        json_files.read_jsonl(path)
    assert len(json_files.read_jsonl(path, is_own_cache=True)) == 4


@pytest.mark.parametrize(
    ("template", "number_of_signs"),
    [('["{}"]', 4), ('{{"{}": 1, "{}": 2}}', 2), ("[{}]", 0)],
    ids=["not an object", "repeated key", "large integer"],
)
def test_long_values_are_shortened_in_messages(tmp_path, template, number_of_signs):
    def get_message(length: int) -> str:
        text = "9" * (length - number_of_signs)
        (tmp_path / "a.json").write_text(template.format(text, text))
        with pytest.raises(RunFolderError, match=r"a\.json is corrupted") as error:
            json_files.read_json_object(tmp_path / "a.json")
        return str(error.value)

    limit = json_files.MAX_QUOTED_CHARS
    assert "9" * (limit - number_of_signs) in get_message(limit)
    assert "9" * 61 not in get_message(limit + 1)
    assert " ... 9" in get_message(limit + 1)


@pytest.mark.parametrize("complete", [b"", b'{"n": 1}\n', b'{"n": 10}\n'], ids=["none", "odd", "even"])
def test_repairing_keeps_exactly_the_complete_lines(tmp_path, complete):
    path = tmp_path / "lines"
    path.write_bytes(complete + b'{"half')
    json_files.repair_jsonl(path)
    assert path.read_bytes() == complete
    json_files.repair_jsonl(path)
    assert path.read_bytes() == complete


def test_values_are_counted(monkeypatch):
    monkeypatch.setattr(json_files, "MAX_JSON_VALUES", 3)
    json_files.check_json_value_count(b"[1,{}]", "source")
    for raw in (b"[1,2,3,4]", b"[[[[", b"{{{{", b"[{,,"):
        with pytest.raises(RunFolderError, match=r"^source has more than 3 values, the limit$"):
            json_files.check_json_value_count(raw, "source")
