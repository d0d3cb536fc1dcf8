"""Tokenizers that take too much time or memory are rejected within seconds while the playground keeps responding."""

import asyncio
import json
import shutil
import subprocess
import sys
from contextlib import aclosing
from pathlib import Path

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from headtohead.data.tokenization import tokenizer_guard, tokenizers
from headtohead.data.tokenization.tokenizer_guard import create_tokenizer_guard
from headtohead.errors import DataError, RequestError
from headtohead.web.models.catalog import FINAL_CHECKPOINT
from headtohead.web.models.client import ModelProcessClient

SLOW_PATTERN = r"a*a*\d"
"""takes time that grows with the cube of a text of a's"""
SLOW_TEXT = "a" * 4000
PADDING = {"direction": "Right", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0, "pad_token": "<pad>"}


def build_tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.WordLevel({"<unk>": 0, "a": 1, "1": 2}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return tokenizer


def slow_normalizer(tokenizer: Tokenizer) -> str:
    tokenizer.normalizer = normalizers.Replace(Regex(SLOW_PATTERN), "x")
    return tokenizer.to_str()


def slow_splitter(tokenizer: Tokenizer) -> str:
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(SLOW_PATTERN), "isolated")])
    return tokenizer.to_str()


def doubling_normalizer(tokenizer: Tokenizer) -> str:
    tokenizer.normalizer = normalizers.Sequence([normalizers.Replace("a", "aa")] * 40)
    return tokenizer.to_str()


def endless_padding(tokenizer: Tokenizer) -> str:
    return json.dumps({**json.loads(tokenizer.to_str()), "padding": {"strategy": {"Fixed": 10**11}, **PADDING}})


@pytest.mark.parametrize("build", [slow_normalizer, slow_splitter, doubling_normalizer, endless_padding])
def test_tokenizers_without_bounds_are_rejected(build, monkeypatch):
    monkeypatch.setattr(tokenizer_guard, "CPU_SECONDS", 1.0)
    guard = create_tokenizer_guard(build(build_tokenizer()))
    with pytest.raises(DataError, match=r"the tokenizer cannot be used: it (takes more than|fails to encode)"):
        guard.check_encoding([SLOW_TEXT])
    if build in (slow_normalizer, slow_splitter):
        guard.check_encoding(["short"])  # in a new child


def test_slow_decoders_are_rejected(monkeypatch):
    monkeypatch.setattr(tokenizer_guard, "CPU_SECONDS", 1.0)
    tokenizer = build_tokenizer()
    tokenizer.decoder = decoders.Sequence([decoders.Fuse(), decoders.Replace(Regex(SLOW_PATTERN), "x")])
    guard = create_tokenizer_guard(tokenizer.to_str())
    guard.check_decoding([1, 2])
    with pytest.raises(DataError, match="s of CPU time to decode"):
        guard.check_decoding([1] * 8000)


def test_own_tokenizers_need_no_guard():
    rows = ["Some words, don't they?"]
    for backend in (
        tokenizers.train_word_tokenizer(rows),
        tokenizers.train_word_tokenizer(rows, lowercase=True),
        tokenizers.train_character_tokenizer(rows),
        tokenizers.build_byte_tokenizer(rows),
        tokenizers.train_bpe_tokenizer(rows),
    ):
        assert create_tokenizer_guard(backend.to_str()) is None


@pytest.fixture
def slow_run(finished_runs: Path, tmp_path: Path) -> Path:
    """Return a run whose tokenizer.json has a slow normalizer prepended."""
    run = Path(shutil.copytree(finished_runs / "baseline" / "seed-0", tmp_path / "slow"))
    tokenizer = Tokenizer.from_str((run / "tokenizer.json").read_text())
    own = [tokenizer.normalizer] if tokenizer.normalizer else []
    tokenizer.normalizer = normalizers.Sequence([normalizers.Replace(Regex(SLOW_PATTERN), "x"), *own])
    (run / "tokenizer.json").write_text(tokenizer.to_str())
    return run


@pytest.mark.parametrize("command", ["generate", "score"])
def test_commands_end_with_an_error(slow_run, command):
    arguments = [sys.executable, "-m", "headtohead.cli", command, str(slow_run), SLOW_TEXT]
    result = subprocess.run(arguments, check=False, capture_output=True, text=True, timeout=300)
    assert result.returncode == 2, result.stderr[-500:]
    assert "the tokenizer cannot be used: it takes more than 5.1 s of CPU time" in result.stderr


def test_the_playground_answers_others(slow_run, finished_runs):
    def ask_next_token(client: ModelProcessClient, run: Path, prompt: str):
        model = {"run": True, "location": str(run), "checkpoint": FINAL_CHECKPOINT, "label": run.name}
        request = {"action": "next", "model": model, "prompt": prompt, "chat": False, "generated_ids": []}
        return first_answer(client, request)

    async def first_answer(client: ModelProcessClient, request: dict):
        async with aclosing(client.submit(request)) as answers:
            return await anext(answers)

    async def play() -> None:
        client = ModelProcessClient()
        try:
            slow = asyncio.create_task(ask_next_token(client, slow_run, SLOW_TEXT))
            good = asyncio.create_task(ask_next_token(client, finished_runs / "baseline" / "seed-0", "a"))
            with pytest.raises(RequestError, match="s of CPU time to encode this text"):
                await slow
            pid = client.pid
            assert (await good)["event"] == "next"
            assert (await ask_next_token(client, slow_run, "a"))["event"] == "next"
            assert client.pid == pid, "the model process lives on"
        finally:
            await client.end()

    asyncio.run(play())
