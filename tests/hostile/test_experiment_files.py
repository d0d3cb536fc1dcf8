"""Untrusted experiment files are rejected quickly, with a message, and without side effects."""

import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tools.fuzz_targets import run_target

from headtohead.config.toml import MAX_FILE_BYTES, parse_toml
from headtohead.errors import ConfigError, RequestError
from headtohead.experiment import loading

from .odd import spoiled, tried

SMALL = b"""question = "Does it help?"
task = "language-model"
seeds = 2
[data]
tokenizer = { kind = "bpe", vocab_size = 300 }
[model]
width = 16
heads = 2
position = ["rope"]
[training]
budget = "2 epochs"
[variants.alibi]
model.position = "alibi"
[[claims]]
source = "somebody"
statement = "it helps"
variant = "alibi"
expected_verdict = "helped"
[search]
space = { "training.batch_size" = [4, 8], "training.optimizer.lr" = { low = 1e-4, high = 1e-2, log = true } }
method = "random"
budget = "4 trials"
[full]
model.width = 32
"""


def refused(scratch: Path, text: str) -> str:
    """Return the error message for this file; fail if parsing takes too long."""
    path = scratch / "refused.toml"
    path.write_text(text)
    began = time.process_time()
    with pytest.raises(ConfigError) as error:  # noqa: PT011  callers look at the words
        loading.load_experiment(path)
    assert time.process_time() - began < 5, "took longer than its length explains"
    return str(error.value)


def test_a_sound_file_is_read(scratch):
    assert run_target("experiment", SMALL, scratch) is None


@tried
@given(data=spoiled(SMALL))
def test_a_corrupted_file_is_read_or_rejected_with_a_message(scratch, data):
    run_target("experiment", data, scratch)


@tried
@given(text=st.text(max_size=200))
def test_any_text_is_rejected_with_a_message(scratch, text):
    assert run_target("experiment", text.encode(), scratch) is not None


HEAD = 'question = "?"\ntask = "language-model"\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (".".join("a" * 30_000) + " = 1", "a dotted key has more than 16 parts"),
        ("[" + ".".join(['"a b"'] * 10_000) + "]", "a dotted key has more than 16 parts"),
        (HEAD + "x = { " + ".".join("a" * 10_000) + " = 1 }", "a dotted key has more than 16 parts"),
        ("x = " + "[" * 50_000, "nested too deep"),
        (HEAD + "x = " + "[" * 100 + "]" * 100, "nested too deep"),
        ("x = " + "9" * 5_000, "4300 digits"),
        (HEAD + f"seeds = {2**60}", "is too large"),
        (HEAD + "seeds = 1_000_000_000", "must be <= 10000"),
        (HEAD + 'seeds = "auto up to ' + "9" * 5_000 + '"', "seeds"),
        (HEAD + "[training]\nbudget = '" + "9" * 400 + " epochs'", "budget"),
        (HEAD + "[training]\nmax_grad_norm = inf", "must be a finite number"),
        (HEAD + "[model]\nposition = { kind = 'alibi', slope = nan }", "must be a finite number"),
        (HEAD + "[model]\nwidth = 1_000_000_000_000\nheads = 7", "must be <= 131072"),
        (HEAD + "[model]\nlayers = 1_000_000_000", "must be <= 1024"),
        (HEAD + "seeds = 2026-01-01", "is a date or a time"),
        (HEAD + 'name = "../../elsewhere"', "is used as a folder name"),
        (HEAD + 'name = ".."', "is used as a folder name"),
        (HEAD + '[variants."../../x"]\nmodel.width = 8', "is used as a folder name"),
        (
            HEAD + "".join(f"[variants.v{at}]\nmodel.width = 8\n" for at in range(1_200)),
            "1,200; an experiment",
        ),
        (
            HEAD + "[search.space]\n'training.batch_size' = { low = -1e308, high = 1e308, step = 1e-300 }",
            "search.space",
        ),
        (HEAD + "[search.space]\n'training.batch_size' = [" + "1," * 2_000 + "]", "lists 2,000 values"),
        ("# " + "x" * MAX_FILE_BYTES, "too long for an experiment"),
    ],
)
def test_what_would_take_forever_or_lead_away_is_rejected(scratch, text, said):
    assert said in refused(scratch, text)


def test_a_line_of_blanks_behind_a_bracket_does_not_take_forever(scratch):
    """A regular expression for table headers took 70 seconds on 2,000 spaces, and 8 times as long on twice as many."""
    message = refused(scratch, HEAD + 'about = """\n[' + " " * 50_000 + '\n"""\nunknown = 1\n')
    assert "unknown" in message


def test_a_name_of_many_parts_inside_a_text_is_a_text():
    assert parse_toml('about = "' + "a." * 100 + '" # ' + "b." * 100)["about"] == "a." * 100


def test_messages_have_an_end(scratch):
    faults = "".join(f"unknown_{at} = 1\n" for at in range(2_000))
    message = refused(scratch, HEAD + faults + f'long = "{"x" * 60_000}"\n')
    assert len(message) < 20_000
    assert "2001 errors" in message
    assert "more" in message


@pytest.mark.parametrize("kind", ["fifo", "device", "folder", "unreadable"])
def test_what_is_no_plain_file_is_not_read(tmp_path, kind):
    path = tmp_path / "experiment.toml"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "folder":
        path.mkdir()
    else:
        path.write_text(HEAD)
        path.chmod(0)
        if os.access(path, os.R_OK):
            pytest.skip("this user may read everything")
    with pytest.raises(RequestError, match=r"experiment\.toml: (no such file|cannot read file)"):
        loading.load_experiment(path)
