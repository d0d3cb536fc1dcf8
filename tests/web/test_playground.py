"""The page Playground: texts as they are written, what may come next, and the limits of both; who goes away stops his
texts, and a long one keeps nobody waiting."""

import asyncio
import json
import signal
import socket
import threading
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
import uvicorn
from starlette.exceptions import HTTPException
from starlette.testclient import TestClient

from headtohead.errors import ModelError, RequestError
from headtohead.generation.detokenizer import encode_prompt
from headtohead.generation.generate import generate
from headtohead.generation.session import DecodingSession
from headtohead.generation.strategies import STRATEGY_OPTIONS
from headtohead.generation.strategy_parsing import SHORTHAND_OPTIONS, parse_strategies
from headtohead.saved_models import model_io
from headtohead.web.app import create_app
from headtohead.web.experiment_folders import ExperimentFolders
from headtohead.web.models import client, process
from headtohead.web.models.catalog import ModelCatalog
from headtohead.web.models.client import ModelProcessClient, ProcessTimeouts
from headtohead.web.models.requests import ModelCache
from headtohead.web.pages import playground

from .conftest import MARKUP, wait_until

BASELINE, ALIBI = "run/tiny/baseline/0", "run/tiny/alibi/0"
PROMPT = "the people will"
ENDLESS = 10**6
"""tokens: more than could be written while a test runs"""


def written(client: TestClient, **asked: Any) -> list[dict[str, Any]]:
    question = {"models": [BASELINE], "strategies": ["greedy"], "prompt": PROMPT, "max_new_tokens": 6, **asked}
    answer = client.post("/api/playground/generate", json=question)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in answer.text.splitlines()]


def test_the_form_offers_what_decode_has() -> None:
    names = [name for name, *_ in playground.STRATEGY_OPTIONS]
    assert names == list(STRATEGY_OPTIONS)
    for name, option, value, *_ in playground.STRATEGY_OPTIONS:
        assert option == SHORTHAND_OPTIONS.get(name) and (option is None or value == STRATEGY_OPTIONS[name][option])


def test_texts_are_those_of_generate_and_come_side_by_side(looking: TestClient, trained: Path) -> None:
    strategies = ["greedy", "top-p=0.9", "beam=2", "contrastive=2"]
    told = written(looking, strategies=strategies, models=[BASELINE, ALIBI], seed=3)
    assert told[0]["event"] == "start" and told[-1] == {"event": "done"}
    columns = told[0]["columns"]
    assert [one["strategy"] for one in columns] == strategies * 2
    steps = [one for one in told if one["event"] == "token"]
    assert [one["column"] for one in steps[:8]] == list(range(8)), "a token of each in turn"
    for at, variant in ((1, "baseline"), (5, "alibi"), (2, "baseline"), (7, "alibi")):
        opened = model_io.load(trained / "tiny" / variant / "seed-0")
        strategy = parse_strategies(strategies[at % 4])[strategies[at % 4]]
        wanted = generate(opened, PROMPT, strategy, max_new_tokens=6, seed=3)[0]
        own = [one for one in steps if one["column"] == at]
        assert "".join(one["text"] for one in own) == wanted.text
        assert [one["id"] for one in own][: len(wanted.ids)] == list(wanted.ids)
        assert own[-1]["ended"] == wanted.finish_reason
    one = next(step for step in steps if step["column"] == 1)
    assert 0.9 <= one["mass"] <= 1 and one["kept"] < 15 and sum(row["count"] for row in one["top"]) == 15
    assert columns[2]["note"] and next(step for step in steps if step["column"] == 2)["kept"] is None


def test_what_may_come_next_holds_the_whole_distribution(looking: TestClient, trained: Path) -> None:
    asked = {"model": BASELINE, "prompt": PROMPT, "generated_ids": [5]}
    found = looking.post("/api/playground/next", json=asked).json()
    opened = model_io.load(trained / "tiny" / "baseline" / "seed-0")
    ids = [*encode_prompt(opened.tokenizer, PROMPT), 5]
    logits = DecodingSession(opened.model, [ids]).logits[0].float()
    assert found["vocabulary"] == len(logits) == len(found["tokens"]) and MARKUP in found["tokens"]
    wanted = logits.sort(descending=True).values
    assert torch.tensor(found["logits"]) == pytest.approx((wanted - wanted[0]).numpy(), abs=1e-3)
    assert found["others"] == [None] * len(found["temperatures"])  # nobody is left


def test_the_rest_of_a_large_vocabulary_is_told_at_every_temperature() -> None:
    from headtohead.web.models.requests import MAX_LISTED_TOKENS, summarize_logits

    class Letters:
        def decode(self, ids: list[int]) -> str:
            return f"t{ids[0]}"

    logits = torch.randn(1000, generator=torch.Generator().manual_seed(0)) * 3
    found = summarize_logits(logits, Letters())
    for temperature, others in zip(found["temperatures"], found["others"], strict=True):
        mass = (logits / temperature).double().softmax(-1).sort(descending=True).values[MAX_LISTED_TOKENS:].sum()
        top = (torch.tensor(found["logits"]).double() / temperature).exp().sum()
        assert torch.tensor(others).double().exp() / (top + torch.tensor(others).double().exp()) == pytest.approx(
            float(mass), rel=1e-2, abs=1e-9
        )
    with pytest.raises(ModelError, match="non-finite logits"):
        summarize_logits(torch.full((4,), torch.nan), Letters())


@pytest.mark.parametrize(
    ("path", "asked", "status", "words"),
    [
        ("generate", {"strategies": ["nonsense"]}, 422, "no strategy named 'nonsense'"),
        ("generate", {"strategies": ["top-p=2"]}, 422, "in (0, 1]"),
        (
            "generate",
            {"strategies": ["greedy,sample,top-k=1,top-k=2,top-k=3,top-k=4,top-k=5,top-k=6,top-k=7"]},
            422,
            "8 texts",
        ),
        ("generate", {"strategies": ["beam=9"]}, 422, "beams must be at most 8"),
        ("generate", {"strategies": ["contrastive=17"]}, 422, "k must be at most 16"),
        ("generate", {"strategies": ["greedy"] * 2}, 422, "given twice"),
        ("generate", {"strategies": []}, 422, "body.strategies"),
        ("generate", {"strategies": ["(" * 200]}, 422, "expected name(option=value"),
        ("generate", {"max_new_tokens": 201}, 422, "less than or equal to 200"),
        ("generate", {"max_new_tokens": 0}, 422, "greater than or equal to 1"),
        ("generate", {"seed": -1}, 422, "body.seed"),
        ("generate", {"prompt": "x" * 4001}, 422, "at most 4000 characters"),
        ("generate", {"prompt": "\ud800"}, 422, "body.prompt"),
        ("generate", {"models": [BASELINE] * 4}, 422, "body.models"),
        ("generate", {"models": [BASELINE] * 2}, 422, "duplicate model"),
        ("generate", {"models": ["run/tiny/baseline/9"]}, 404, "no such model"),
        ("generate", {"models": ["../../etc"]}, 404, "no such model"),
        ("next", {"generated_ids": [99999]}, 422, "outside the model's vocabulary"),
        ("next", {"generated_ids": [-1]}, 422, "body.generated_ids"),
        ("next", {"generated_ids": [1] * 201}, 422, "body.generated_ids"),
        ("next", {"chat": True}, 422, "chat template"),
    ],
)
def test_what_cannot_be_is_refused_with_a_reason(
    looking: TestClient, path: str, asked: dict[str, Any], status: int, words: str
) -> None:
    whole = {"models": [BASELINE], "strategies": ["greedy"]} if path == "generate" else {"model": BASELINE}
    answer = looking.post(
        f"/api/playground/{path}",
        content=json.dumps({**whole, "prompt": PROMPT, **asked}),
        headers={"content-type": "application/json"},
    )
    assert answer.status_code == status and words in answer.json()["detail"], answer.text


def test_nothing_is_written_by_get_and_foreign_sites_are_refused(looking: TestClient) -> None:
    assert looking.get("/api/playground/generate").status_code == 405
    foreign = looking.post("/api/playground/generate", json={}, headers={"origin": "http://example.org"})
    assert foreign.status_code == 403


def test_a_strategy_that_a_model_cannot_do_costs_only_its_own_text(looking: TestClient) -> None:
    told = written(looking, strategies=["greedy", "greedy(force_stop=3)", "sample(ban=['the'])"], max_new_tokens=5)
    assert {one["column"] for one in told if one["event"] == "token"} >= {0, 2}
    assert told[-1] == {"event": "done"}


# ---- the process


class Endless(ModelProcessClient):
    """The real thing, but its texts never end by themselves."""

    def ask(self, question: dict[str, Any]) -> AsyncGenerator[dict[str, Any]]:
        endless = {"max_new_tokens": ENDLESS, "strategies": ["sample(ban=['</s>'], min_new_tokens=1000000)"]}
        return super().ask({**question, **(endless if question["action"] == "generate" else {})})


def is_idle(pid: int | None) -> bool:
    """Whether a process computes nothing for a moment."""
    assert pid is not None
    process = psutil.Process(pid)
    before = sum(process.cpu_times()[:2])
    time.sleep(0.6)
    return sum(process.cpu_times()[:2]) - before < 0.05


def test_a_client_that_goes_away_stops_its_text(trained: Path) -> None:
    app = create_app(trained, experiment_files_folder=trained.parent)
    app.state.site.models = Endless()
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="on"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        body = json.dumps({"models": [BASELINE], "strategies": ["sample"], "prompt": PROMPT})
        head = "POST /api/playground/generate HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        with socket.create_connection(listening.getsockname(), timeout=120) as line:
            line.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
            seen = b""
            while seen.count(b'"token"') < 3:
                seen += line.recv(4096)
            assert app.state.site.models.num_active_requests == 1
        wait_until(lambda: app.state.site.models.num_active_requests == 0, 30)
        wait_until(lambda: is_idle(app.state.site.models.pid), 30)
        child = app.state.site.models.pid
        server.should_exit = True
        thread.join(timeout=30)
    assert not psutil.pid_exists(child), "the child ends with the server"


def test_requests_take_turns_and_too_many_are_turned_away(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "MAX_QUEUED_REQUESTS", 2)
    named = ModelCatalog(ExperimentFolders.open_root(trained)).find(BASELINE).to_load_request("after")
    question = {
        "models": [named],
        "strategies": ["greedy"],
        "prompt": PROMPT,
        "chat": False,
        "seed": 0,
        "max_new_tokens": 3,
    }

    async def first(asked: ModelProcessClient) -> AsyncGenerator[dict[str, Any]]:
        answers = asked.ask({"action": "generate", **question})
        assert (await anext(answers))["event"] == "start"
        return answers

    async def play() -> None:
        asked = Endless()
        try:
            long = [await first(asked) for _ in range(client.MAX_CONCURRENT_REQUESTS - 1)]
            short = {"action": "next", "model": named, "prompt": PROMPT, "chat": False, "generated_ids": []}
            async with aclosing(asked.ask(short)) as answers:  # while three texts are written
                assert (await anext(answers))["event"] == "next"
            long.append(await first(asked))
            waiting = [asyncio.create_task(first(asked)) for _ in range(2)]
            await asyncio.sleep(0)
            with pytest.raises(HTTPException, match="too many"):
                await anext(asked.ask(short))
            await long.pop(0).aclose()
            long.append(await waiting[0])  # the one that came first
            assert not waiting[1].done()
            waiting[1].cancel()
            for answers in long:
                await answers.aclose()
            assert asked.num_active_requests == 0
        finally:
            await asked.end()

    asyncio.run(play())


@pytest.fixture
def turns() -> Iterator[tuple[process.RequestScheduler, list[dict[str, Any]]]]:
    """Turns in this process, with requests that count or never come to an answer."""
    said: list[dict[str, Any]] = []

    def begin(asked: dict[str, Any]) -> Iterator[dict[str, Any]]:
        if asked["action"] == "stuck":
            try:
                while True:
                    sum(range(1000))
            finally:
                said.append({"event": "cleaned up"})
        for at in range(2):
            yield {"event": "step", "at": at}

    made = process.RequestScheduler(begin, said.append, step_limit_seconds=0.3, request_limit_seconds=60)
    before = [signal.signal(signal.SIGUSR1, made.on_cancel_signal), signal.signal(signal.SIGPROF, made.on_cpu_timer)]
    yield made, said
    signal.signal(signal.SIGUSR1, before[0])
    signal.signal(signal.SIGPROF, before[1])


def _advance(made: process.RequestScheduler, times: int) -> None:
    for _ in range(times):
        while not made.inbox.empty():
            asked = made.inbox.get()
            made.active_requests.append(process.ActiveRequest(asked["request"], made.handle_request(asked)))
        if made.active_requests:
            made._advance_request(made.active_requests.popleft())


def test_a_step_is_stopped_in_the_middle_and_costs_the_others_nothing(turns: Any) -> None:
    made, said = turns
    made.inbox.put({"request": 1, "action": "stuck"})
    made.inbox.put({"request": 2, "action": "count"})
    threading.Timer(0.1, made.stop, [1]).start()
    _advance(made, 6)
    assert said == [
        {"event": "cleaned up"},
        *({"event": "step", "at": at, "request": 2} for at in range(2)),
        {"request": 2, "event": "done"},
    ]


def test_a_step_that_computes_too_long_is_given_up(turns: Any) -> None:
    made, said = turns
    made.inbox.put({"request": 1, "action": "stuck"})
    _advance(made, 1)
    assert said == [
        {"event": "cleaned up"},
        {"request": 1, "event": "failed", "message": process.COMPUTE_LIMIT_MESSAGE},
    ]


def asked_of(trained: Path, **more: Any) -> dict[str, Any]:
    """A question for the model process itself."""
    named = ModelCatalog(ExperimentFolders.open_root(trained)).find(BASELINE).to_load_request("after")
    given = {
        "models": [named],
        "strategies": ["greedy"],
        "prompt": PROMPT,
        "chat": False,
        "seed": 0,
        "max_new_tokens": 3,
    }
    return {"action": "generate", **given, **more}


async def all_of(answers: AsyncGenerator[dict[str, Any]], told: list[str]) -> None:
    """Listen to the end."""
    async for answer in answers:
        told += [answer["event"]]


def test_the_process_goes_when_nothing_was_asked_for_a_while_and_comes_again(trained: Path) -> None:
    async def play() -> None:
        asked = ModelProcessClient(ProcessTimeouts(idle=0.5))
        try:
            first = None
            for _ in range(2):
                told = [answer["event"] async for answer in asked.ask(asked_of(trained))]
                assert told[0] == "start" and "token" in told
                pid = asked.pid
                assert pid is not None and pid != first, "a new one"
                first = pid
                async with asyncio.timeout(60):
                    while asked.pid is not None:
                        await asyncio.sleep(0.05)
                assert not psutil.pid_exists(pid), "and its memory with it"
        finally:
            await asked.end()

    asyncio.run(play())


def test_a_process_that_is_asked_something_does_not_go(trained: Path) -> None:
    async def play() -> None:
        asked = Endless(ProcessTimeouts(idle=0.3))
        try:
            async with aclosing(asked.ask(asked_of(trained))) as answers:
                await anext(answers)
                pid, until = asked.pid, time.monotonic() + 1
                while time.monotonic() < until:
                    await anext(answers)
                assert asked.pid == pid
        finally:
            await asked.end()

    asyncio.run(play())


def test_a_request_that_computes_too_long_ends_and_the_next_is_answered(trained: Path) -> None:
    async def play() -> None:
        asked = Endless(ProcessTimeouts(request_cpu_seconds=1.5))
        try:
            told: list[str] = []
            with pytest.raises(RequestError, match="exceeds the time limit; use a shorter text"):
                await all_of(asked.ask(asked_of(trained)), told)
            assert told.count("token") > 1, "until then it wrote"
            pid = asked.pid
            async with aclosing(asked.ask(asked_of(trained))) as answers:
                assert (await anext(answers))["event"] == "start"
            assert asked.pid == pid
        finally:
            await asked.end()

    asyncio.run(play())


def test_a_search_that_computes_too_long_ends_in_the_middle_and_the_next_is_answered(trained: Path) -> None:
    endless = {"strategies": ["beam(beams=8, ban=['</s>'], min_new_tokens=1000000)"], "max_new_tokens": ENDLESS}

    async def play() -> None:
        asked = ModelProcessClient(ProcessTimeouts(step=1.5))
        try:
            told: list[str] = []
            with pytest.raises(RequestError, match="exceeds the time limit"):
                await all_of(asked.ask(asked_of(trained, **endless)), told)
            assert told == ["start"], "the search is one step"
            pid = asked.pid
            await all_of(asked.ask(asked_of(trained)), told)
            assert "token" in told and asked.pid == pid
        finally:
            await asked.end()

    asyncio.run(play())


def test_the_limits_are_those_that_the_guide_names() -> None:
    assert ProcessTimeouts() == ProcessTimeouts(idle=600, step=60, request_cpu_seconds=180, unresponsive_seconds=300)
    assert ModelProcessClient().timeouts == ProcessTimeouts()


def test_the_last_models_stay_loaded_within_a_bound(trained: Path) -> None:
    catalog = ModelCatalog(ExperimentFolders.open_root(trained))
    one, other = (catalog.find(key).to_load_request("after") for key in (BASELINE, ALIBI))
    size = (trained / "tiny" / "baseline" / "seed-0" / "model.safetensors").stat().st_size
    shelf = ModelCache(int(1.5 * size))
    with shelf.acquire(one) as first:
        with shelf.acquire(one) as again:
            assert again is first
        with pytest.raises(RequestError, match="occupy all memory"), shelf.acquire(other):
            pass
    with shelf.acquire(other):
        assert [key[0] for key in shelf.cached_models] == [other["place"]]
    with pytest.raises(ModelError, match="the limit is"), ModelCache(10).acquire(one):
        pass
