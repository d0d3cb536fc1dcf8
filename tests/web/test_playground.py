"""The playground: streamed texts, next-token probabilities, and their limits. A disconnect cancels generation, and long
texts do not block other requests.
"""

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
from headtohead.generation.generate import generate
from headtohead.generation.prompt_encoding import encode_prompt
from headtohead.generation.session import DecodingSession
from headtohead.generation.strategies import STRATEGY_OPTIONS
from headtohead.generation.strategy_parsing import SHORTHAND_OPTIONS, parse_strategies
from headtohead.saved_models import model_io
from headtohead.web.app import create_app
from headtohead.web.experiment_folders import ExperimentFolders
from headtohead.web.models import client, process
from headtohead.web.models.catalog import ModelCatalog
from headtohead.web.models.client import ModelProcessClient, ProcessTimeouts
from headtohead.web.models.model_cache import ModelCache
from headtohead.web.pages import playground

from .conftest import MARKUP, wait_until

BASELINE, ALIBI = "run/tiny/baseline/0", "run/tiny/alibi/0"
PROMPT = "the people will"
ENDLESS = 10**6
"""tokens: more than could be written while a test runs"""


def generate_events(client: TestClient, **fields: Any) -> list[dict[str, Any]]:
    request_body = {"models": [BASELINE], "strategies": ["greedy"], "prompt": PROMPT, "max_new_tokens": 6, **fields}
    response = client.post("/api/playground/generate", json=request_body)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in response.text.splitlines()]


def test_the_form_offers_what_decode_has() -> None:
    names = [name for name, *_ in playground.STRATEGY_OPTIONS]
    assert names == list(STRATEGY_OPTIONS)
    for name, option, value, *_ in playground.STRATEGY_OPTIONS:
        assert option == SHORTHAND_OPTIONS.get(name) and (option is None or value == STRATEGY_OPTIONS[name][option])


def test_texts_are_those_of_generate_and_come_side_by_side(model_client: TestClient, trained: Path) -> None:
    strategies = ["greedy", "top-p=0.9", "beam=2", "contrastive=2"]
    messages = generate_events(model_client, strategies=strategies, models=[BASELINE, ALIBI], seed=3)
    assert messages[0]["event"] == "start" and messages[-1] == {"event": "done"}
    columns = messages[0]["columns"]
    assert [item["strategy"] for item in columns] == strategies * 2
    steps = [item for item in messages if item["event"] == "token"]
    assert [item["column"] for item in steps[:8]] == list(range(8)), "a token of each in turn"
    for index, variant in ((1, "baseline"), (5, "alibi"), (2, "baseline"), (7, "alibi")):
        loaded = model_io.load_saved_model(trained / "tiny" / variant / "seed-0")
        strategy = parse_strategies(strategies[index % 4])[strategies[index % 4]]
        expected = generate(loaded, PROMPT, strategy, max_new_tokens=6, seed=3)[0]
        column_events = [item for item in steps if item["column"] == index]
        assert "".join(item["text"] for item in column_events) == expected.text
        assert [item["id"] for item in column_events][: len(expected.ids)] == list(expected.ids)
        assert column_events[-1]["ended"] == expected.finish_reason
    item = next(step for step in steps if step["column"] == 1)
    assert 0.9 <= item["mass"] <= 1 and item["kept"] < 15 and sum(row["count"] for row in item["top"]) == 15
    assert columns[2]["note"] and next(step for step in steps if step["column"] == 2)["kept"] is None


def test_what_may_come_next_holds_the_whole_distribution(model_client: TestClient, trained: Path) -> None:
    request = {"model": BASELINE, "prompt": PROMPT, "generated_ids": [5]}
    content = model_client.post("/api/playground/next", json=request).json()
    loaded = model_io.load_saved_model(trained / "tiny" / "baseline" / "seed-0")
    ids = [*encode_prompt(loaded.tokenizer, PROMPT), 5]
    logits = DecodingSession(loaded.model, [ids]).logits[0].float()
    assert content["vocabulary"] == len(logits) == len(content["tokens"]) and MARKUP in content["tokens"]
    values = logits.sort(descending=True).values
    assert torch.tensor(content["logits"]) == pytest.approx((values - values[0]).numpy(), abs=1e-3)
    assert content["others"] == [None] * len(content["temperatures"])  # nobody is left


def test_the_rest_of_a_large_vocabulary_is_told_at_every_temperature() -> None:
    from headtohead.web.models.request_handlers import MAX_LISTED_TOKENS, summarize_next_token_logits

    class Letters:
        def decode(self, ids: list[int]) -> str:
            return f"t{ids[0]}"

    logits = torch.randn(1000, generator=torch.Generator().manual_seed(0)) * 3
    result = summarize_next_token_logits(logits, Letters())
    for temperature, others in zip(result["temperatures"], result["others"], strict=True):
        mass = (logits / temperature).double().softmax(-1).sort(descending=True).values[MAX_LISTED_TOKENS:].sum()
        top = (torch.tensor(result["logits"]).double() / temperature).exp().sum()
        assert torch.tensor(others).double().exp() / (top + torch.tensor(others).double().exp()) == pytest.approx(
            float(mass), rel=1e-2, abs=1e-9
        )
    with pytest.raises(ModelError, match="non-finite logits"):
        summarize_next_token_logits(torch.full((4,), torch.nan), Letters())


@pytest.mark.parametrize(
    ("path", "fields", "status", "message_part"),
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
def test_what_cannot_be_is_rejected_with_a_reason(
    model_client: TestClient, path: str, fields: dict[str, Any], status: int, message_part: str
) -> None:
    complete = {"models": [BASELINE], "strategies": ["greedy"]} if path == "generate" else {"model": BASELINE}
    response = model_client.post(
        f"/api/playground/{path}",
        content=json.dumps({**complete, "prompt": PROMPT, **fields}),
        headers={"content-type": "application/json"},
    )
    assert response.status_code == status and message_part in response.json()["detail"], response.text


def test_nothing_is_written_by_get_and_foreign_sites_are_rejected(model_client: TestClient) -> None:
    assert model_client.get("/api/playground/generate").status_code == 405
    foreign = model_client.post("/api/playground/generate", json={}, headers={"origin": "http://example.org"})
    assert foreign.status_code == 403


def test_a_strategy_that_a_model_cannot_do_costs_only_its_own_text(model_client: TestClient) -> None:
    messages = generate_events(
        model_client, strategies=["greedy", "greedy(force_stop=3)", "sample(ban=['the'])"], max_new_tokens=5
    )
    assert {item["column"] for item in messages if item["event"] == "token"} >= {0, 2}
    assert messages[-1] == {"event": "done"}


# ---- the process


class EndlessGenerationClient(ModelProcessClient):
    """The real model process, with texts that never end."""

    def submit(self, request_body: dict[str, Any]) -> AsyncGenerator[dict[str, Any]]:
        endless = {"max_new_tokens": ENDLESS, "strategies": ["sample(ban=['</s>'], min_new_tokens=1000000)"]}
        return super().submit({**request_body, **(endless if request_body["action"] == "generate" else {})})


def uses_no_cpu_time(pid: int | None) -> bool:
    """Return whether a process uses no CPU time for a moment."""
    assert pid is not None
    process = psutil.Process(pid)
    before = sum(process.cpu_times()[:2])
    time.sleep(0.6)
    return sum(process.cpu_times()[:2]) - before < 0.05


def test_a_client_that_goes_away_stops_its_text(trained: Path) -> None:
    app = create_app(trained, experiment_files_folder=trained.parent)
    app.state.context.model_process = EndlessGenerationClient()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="on"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        body = json.dumps({"models": [BASELINE], "strategies": ["sample"], "prompt": PROMPT})
        header = "POST /api/playground/generate HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        with socket.create_connection(listener.getsockname(), timeout=120) as connection:
            connection.sendall(f"{header}Content-Length: {len(body)}\r\n\r\n{body}".encode())
            received = b""
            while received.count(b'"token"') < 3:
                received += connection.recv(4096)
            assert app.state.context.model_process.num_active_requests == 1
        wait_until(lambda: app.state.context.model_process.num_active_requests == 0, 30)
        wait_until(lambda: uses_no_cpu_time(app.state.context.model_process.pid), 30)
        child = app.state.context.model_process.pid
        server.should_exit = True
        thread.join(timeout=30)
    assert not psutil.pid_exists(child), "the child ends with the server"


def test_requests_take_turns_and_too_many_are_turned_away(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "MAX_QUEUED_REQUESTS", 2)
    load_request = ModelCatalog(ExperimentFolders.open_root(trained)).find_model(BASELINE).to_load_request("after")
    request_body = {
        "models": [load_request],
        "strategies": ["greedy"],
        "prompt": PROMPT,
        "chat": False,
        "seed": 0,
        "max_new_tokens": 3,
    }

    async def start_generation(model_process: ModelProcessClient) -> AsyncGenerator[dict[str, Any]]:
        responses = model_process.submit({"action": "generate", **request_body})
        assert (await anext(responses))["event"] == "start"
        return responses

    async def send_requests() -> None:
        model_process = EndlessGenerationClient()
        try:
            long = [await start_generation(model_process) for _ in range(client.MAX_CONCURRENT_REQUESTS - 1)]
            short = {"action": "next", "model": load_request, "prompt": PROMPT, "chat": False, "generated_ids": []}
            async with aclosing(model_process.submit(short)) as responses:  # while three texts are written
                assert (await anext(responses))["event"] == "next"
            long.append(await start_generation(model_process))
            waiting = [asyncio.create_task(start_generation(model_process)) for _ in range(2)]
            await asyncio.sleep(0)
            with pytest.raises(HTTPException, match="too many"):
                await anext(model_process.submit(short))
            await long.pop(0).aclose()
            long.append(await waiting[0])  # the one that came first
            assert not waiting[1].done()
            waiting[1].cancel()
            for responses in long:
                await responses.aclose()
            assert model_process.num_active_requests == 0
        finally:
            await model_process.end()

    asyncio.run(send_requests())


@pytest.fixture
def scheduler_and_output() -> Iterator[tuple[process.RequestScheduler, list[dict[str, Any]]]]:
    """Queue in this process, with requests that count or never finish."""
    output: list[dict[str, Any]] = []

    def handle_request(request: dict[str, Any]) -> Iterator[dict[str, Any]]:
        if request["action"] == "stuck":
            try:
                while True:
                    sum(range(1000))
            finally:
                output.append({"event": "cleaned up"})
        for index in range(2):
            yield {"event": "step", "at": index}

    request_scheduler = process.RequestScheduler(
        handle_request, output.append, step_limit_seconds=0.3, request_limit_seconds=60
    )
    before = [
        signal.signal(signal.SIGUSR1, request_scheduler.on_cancel_signal),
        signal.signal(signal.SIGPROF, request_scheduler.on_cpu_timer),
    ]
    yield request_scheduler, output
    signal.signal(signal.SIGUSR1, before[0])
    signal.signal(signal.SIGPROF, before[1])


def _advance(scheduler: process.RequestScheduler, times: int) -> None:
    for _ in range(times):
        while not scheduler.incoming_requests.empty():
            request = scheduler.incoming_requests.get()
            scheduler.active_requests.append(
                process.ActiveRequest(request["request"], scheduler.handle_request(request))
            )
        if scheduler.active_requests:
            scheduler._advance_request(scheduler.active_requests.popleft())


def test_a_step_is_stopped_in_the_middle_and_costs_the_others_nothing(scheduler_and_output: Any) -> None:
    scheduler, output = scheduler_and_output
    scheduler.incoming_requests.put({"request": 1, "action": "stuck"})
    scheduler.incoming_requests.put({"request": 2, "action": "count"})
    threading.Timer(0.1, scheduler.cancel_request, [1]).start()
    _advance(scheduler, 6)
    assert output == [
        {"event": "cleaned up"},
        *({"event": "step", "at": index, "request": 2} for index in range(2)),
        {"request": 2, "event": "done"},
    ]


def test_a_step_that_computes_too_long_is_given_up(scheduler_and_output: Any) -> None:
    scheduler, output = scheduler_and_output
    scheduler.incoming_requests.put({"request": 1, "action": "stuck"})
    _advance(scheduler, 1)
    assert output == [
        {"event": "cleaned up"},
        {"request": 1, "event": "failed", "message": process.COMPUTE_LIMIT_MESSAGE},
    ]


def build_generation_request(trained: Path, **more: Any) -> dict[str, Any]:
    """Send a request directly to the model process."""
    load_request = ModelCatalog(ExperimentFolders.open_root(trained)).find_model(BASELINE).to_load_request("after")
    value = {
        "models": [load_request],
        "strategies": ["greedy"],
        "prompt": PROMPT,
        "chat": False,
        "seed": 0,
        "max_new_tokens": 3,
    }
    return {"action": "generate", **value, **more}


async def collect_event_names(responses: AsyncGenerator[dict[str, Any]], event_names: list[str]) -> None:
    """Collect all events."""
    async for response in responses:
        event_names += [response["event"]]


def test_the_process_goes_when_nothing_was_asked_for_a_while_and_comes_again(trained: Path) -> None:
    async def send_requests() -> None:
        model_process_client = ModelProcessClient(ProcessTimeouts(idle_seconds=0.5))
        try:
            first = None
            for _ in range(2):
                messages = [
                    response["event"]
                    async for response in model_process_client.submit(build_generation_request(trained))
                ]
                assert messages[0] == "start" and "token" in messages
                pid = model_process_client.pid
                assert pid is not None and pid != first, "a new one"
                first = pid
                async with asyncio.timeout(60):
                    while model_process_client.pid is not None:
                        await asyncio.sleep(0.05)
                assert not psutil.pid_exists(pid), "and its memory with it"
        finally:
            await model_process_client.end()

    asyncio.run(send_requests())


def test_a_process_that_is_asked_something_does_not_go(trained: Path) -> None:
    async def send_requests() -> None:
        model_process = EndlessGenerationClient(ProcessTimeouts(idle_seconds=0.3))
        try:
            async with aclosing(model_process.submit(build_generation_request(trained))) as responses:
                await anext(responses)
                pid, until = model_process.pid, time.monotonic() + 1
                while time.monotonic() < until:
                    await anext(responses)
                assert model_process.pid == pid
        finally:
            await model_process.end()

    asyncio.run(send_requests())


def test_a_request_that_computes_too_long_ends_and_the_next_is_answered(trained: Path) -> None:
    async def send_requests() -> None:
        model_process = EndlessGenerationClient(ProcessTimeouts(request_cpu_seconds=1.5))
        try:
            messages: list[str] = []
            with pytest.raises(RequestError, match="exceeds the time limit; use a shorter text"):
                await collect_event_names(model_process.submit(build_generation_request(trained)), messages)
            assert messages.count("token") > 1, "until then it wrote"
            pid = model_process.pid
            async with aclosing(model_process.submit(build_generation_request(trained))) as responses:
                assert (await anext(responses))["event"] == "start"
            assert model_process.pid == pid
        finally:
            await model_process.end()

    asyncio.run(send_requests())


def test_a_search_that_computes_too_long_ends_in_the_middle_and_the_next_is_answered(trained: Path) -> None:
    endless = {"strategies": ["beam(beams=8, ban=['</s>'], min_new_tokens=1000000)"], "max_new_tokens": ENDLESS}

    async def send_requests() -> None:
        model_process_client = ModelProcessClient(ProcessTimeouts(step_cpu_seconds=1.5))
        try:
            messages: list[str] = []
            with pytest.raises(RequestError, match="exceeds the time limit"):
                await collect_event_names(
                    model_process_client.submit(build_generation_request(trained, **endless)), messages
                )
            assert messages == ["start"], "the search is one step"
            pid = model_process_client.pid
            await collect_event_names(model_process_client.submit(build_generation_request(trained)), messages)
            assert "token" in messages and model_process_client.pid == pid
        finally:
            await model_process_client.end()

    asyncio.run(send_requests())


def test_the_limits_are_those_that_the_guide_names() -> None:
    assert ProcessTimeouts() == ProcessTimeouts(
        idle_seconds=600, step_cpu_seconds=60, request_cpu_seconds=180, unresponsive_seconds=300
    )
    assert ModelProcessClient().timeouts == ProcessTimeouts()


def test_the_last_models_stay_loaded_within_a_bound(trained: Path) -> None:
    catalog = ModelCatalog(ExperimentFolders.open_root(trained))
    item, other = (catalog.find_model(key).to_load_request("after") for key in (BASELINE, ALIBI))
    size = (trained / "tiny" / "baseline" / "seed-0" / "model.safetensors").stat().st_size
    model_cache = ModelCache(int(1.5 * size))
    with model_cache.acquire(item) as first:
        with model_cache.acquire(item) as second_result:
            assert second_result is first
        with pytest.raises(RequestError, match="occupy all memory"), model_cache.acquire(other):
            pass
    with model_cache.acquire(other):
        assert [key[0] for key in model_cache.cached_models] == [other["location"]]
    with pytest.raises(ModelError, match="the limit is"), ModelCache(10).acquire(item):
        pass
