"""The live state of an experiment, and one watcher shared by all clients."""

import asyncio
import fcntl
import json
import os
import shutil
import time
from collections.abc import Callable, Coroutine
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from headtohead.json_files import read_json, write_json
from headtohead.web import site
from headtohead.web.live import watchers as live_watchers
from headtohead.web.live.experiment_state import ExperimentReader, MetricsFileTail, downsample_curves
from headtohead.web.live.watchers import ExperimentWatcher, WatcherRegistry

from .conftest import append_metrics, write_experiment, write_verdict


def test_states_steps_and_figures_are_those_of_the_files(runs: Path) -> None:
    live = ExperimentReader(runs, "stopped").read_state()
    assert (live.state, live.finished, live.question) == ("stopped", 2, "Does it help?")
    assert [(t.variant, t.seed, t.state) for t in live.trials] == [
        ("baseline", 0, "finished"),
        ("alibi", 0, "finished"),
        ("baseline", 1, "stopped"),
        ("alibi", 1, "waiting"),
    ]
    trial = live.trials[2]
    assert (trial.step, trial.steps, trial.value, trial.split) == (10, 20, 20.0, "validation")
    assert live.curves["alibi"] == {"validation": {"0": [[0, 30.0], [10, 20.0]]}}
    assert ExperimentReader(runs, "done").read_state().state == "finished"


def test_the_figure_of_a_trial_is_that_of_the_split_that_is_judged(runs: Path) -> None:
    run = runs / "stopped" / "baseline" / "seed-1"
    append_metrics(run, 10, "test", 40.0)
    append_metrics(run, 15, "validation", 15.0)
    result = {(t.variant, t.seed): (t.split, t.value) for t in ExperimentReader(runs, "stopped").read_state().trials}
    assert result["baseline", 1] == ("test", 40.0)
    assert result["alibi", 0] == ("validation", 20.0), "where it is not followed, always the same other one"


def test_whoever_holds_the_lock_is_training(runs: Path) -> None:
    reader = ExperimentReader(runs, "stopped")
    with (runs / ".stopped.lock").open("w") as file:
        assert reader.read_state().state == "stopped", "a lock that nobody holds says nothing"
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        live = reader.read_state()
        assert (live.state, live.trials[2].state, live.can_stop) == ("running", "running", False)
    assert reader.read_state().state == "stopped"


def test_a_failure_is_reported_and_a_resume_draws_curves_again(runs: Path) -> None:
    run = runs / "stopped" / "baseline" / "seed-1"
    reader = ExperimentReader(runs, "stopped")
    write_json(run / "failure.json", {"message": "the loss is not a number"})
    live = reader.read_state()
    assert (live.state, live.trials[2].message) == ("failed", "the loss is not a number")
    (run / "failure.json").unlink()
    (run / "metrics.jsonl").write_text("")
    append_metrics(run, 0, "validation", 31.0)
    assert reader.read_state().curves["baseline"]["validation"]["1"] == [[0, 31.0]]


def test_only_the_new_end_of_a_growing_file_is_read(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    tail = MetricsFileTail(file)
    assert tail.read_lines() == []
    append_metrics(tmp_path, 1, "test", 2.0)
    with file.open("ab") as metrics_file:
        metrics_file.write(b'{"step": 2, "loss": 0.5, "spl')
    assert [line.step for line in tail.read_lines()] == [1]
    first = tail.lines[0]
    with file.open("ab") as metrics_file:
        metrics_file.write(b'it": "test"}\n')
    assert [line.step for line in tail.read_lines()] == [1, 2]
    assert tail.lines[0] is first
    assert tail.offset == file.stat().st_size


def test_long_curves_are_drawn_at_an_even_choice_of_steps() -> None:
    points = [[step, 1.0] for step in range(1000)]
    test = downsample_curves({"a": {"test": {"0": points, "1": points[:500]}}})["a"]["test"]
    assert len(test["0"]) <= 60 and test["0"][-1][0] == 999
    assert {step for step, _ in test["1"]} <= {step for step, _ in test["0"]}


def run_with_watchers(
    runs: Path, use_watchers: Callable[[WatcherRegistry], Coroutine[Any, Any, None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Create watchers that poll often and render nothing."""

    async def render_nothing(self: ExperimentWatcher, live: Any) -> None:
        return None

    async def run() -> None:
        await use_watchers(WatcherRegistry(runs, site.render_region))

    monkeypatch.setattr(live_watchers, "POLL_SECONDS", 0.02)
    monkeypatch.setattr(ExperimentWatcher, "_render_slow_regions", render_nothing)
    asyncio.run(run())


async def collect_regions(stream: Any, count: int) -> dict[str, str]:
    result: dict[str, str] = {}
    async for messages in stream:
        if b"event: region" in messages:
            content = json.loads(messages.partition(b"data: ")[2])
            result[content["region"]] = content["html"]
        if len(result) >= count:
            return result
    return result


def test_clients_share_one_watcher_that_rests_when_nobody_looks(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = 0
    read_state = ExperimentReader.read_state

    def read_and_count(self: ExperimentReader) -> Any:
        nonlocal reads
        reads += 1
        return read_state(self)

    monkeypatch.setattr(ExperimentReader, "read_state", read_and_count)

    async def use_watchers(watchers: WatcherRegistry) -> None:
        streams = [watchers.get_watcher("stopped").stream_events() for _ in range(50)]
        regions_by_client = await asyncio.gather(*(collect_regions(stream, 5) for stream in streams))
        assert all(set(one) == {"status", "trials", "audits", "verdicts", "curves"} for one in regions_by_client)
        assert watchers.get_watcher("stopped").num_clients == 50
        assert reads < 25, "one read for all of them, not one for each"
        for stream in streams:
            await stream.aclose()
        assert watchers.get_watcher("stopped").num_clients == 0
        await asyncio.sleep(0.1)
        before = reads
        await asyncio.sleep(0.2)
        assert reads == before

    run_with_watchers(runs, use_watchers, monkeypatch)


def test_a_change_reaches_everybody_and_only_what_changed_is_sent(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def use_watchers(watchers: WatcherRegistry) -> None:
        stream = watchers.get_watcher("stopped").stream_events()
        first = await collect_regions(stream, 5)
        assert "2 of 4 trials finished" in first["status"]
        stream = watchers.get_watcher("stopped").stream_events()
        await collect_regions(stream, 5)
        write_json(runs / "stopped" / "baseline" / "seed-1" / "result.json", {})
        changed_regions = await collect_regions(stream, 2)
        assert set(changed_regions) <= {"status", "trials"}
        assert "3 of 4 trials finished" in changed_regions["status"]
        write_verdict(runs / "stopped")
        assert "perplexity 5 % lower" in (await collect_regions(stream, 1))["verdicts"]
        await stream.aclose()

    run_with_watchers(runs, use_watchers, monkeypatch)


def test_a_slow_client_gets_the_latest_and_nothing_piles_up(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def use_watchers(watchers: WatcherRegistry) -> None:
        watcher = watchers.get_watcher("stopped")
        stream = watcher.stream_events()
        await collect_regions(stream, 5)
        metrics = runs / "stopped" / "baseline" / "seed-1" / "metrics.jsonl"
        for step in range(11, 31):  # while the client does not read
            append_metrics(metrics.parent, step, "validation", 9.0)
            await asyncio.sleep(0.03)
        await asyncio.sleep(0.3)
        assert len(watcher.regions) == 5
        changed_regions = await collect_regions(stream, 1)
        assert "30 of 20" in changed_regions["trials"], "the last state, and none of those in between"
        await stream.aclose()

    run_with_watchers(runs, use_watchers, monkeypatch)


def test_a_verdict_is_one_so_far_until_the_last_trial_is_in(runs: Path, finished: Path) -> None:
    """Uses real run folders, the real render worker, and the lock of a training process."""
    existing = runs / "real"
    shutil.copytree(finished, existing)
    last, result = existing / "alibi" / "seed-1" / "result.json", existing / "findings.json"
    (runs / "later").mkdir()
    last.rename(runs / "later" / "result.json")
    result.rename(runs / "later" / "findings.json")

    async def use_watchers() -> None:
        watchers = WatcherRegistry(runs, site.render_region)
        stream = watchers.get_watcher("real").stream_events()
        with (runs / ".real.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            html = await wait_for_region(stream, "verdicts", lambda html: "alibi" in html)
            assert "Interim result" in html and "only the final verdict counts" in html and "<svg" in html
            assert "3 of 4 trials finished" in watchers.get_watcher("real").regions["status"].event.decode()
        (runs / "later" / "result.json").rename(last)
        (runs / "later" / "findings.json").rename(result)
        os.utime(result)
        html = await wait_for_region(stream, "verdicts", lambda html: "Interim result" not in html)
        assert read_json(result)["verdicts"][0]["summary"] in unescape(html)
        await stream.aclose()
        await watchers.render_worker.end()

    asyncio.run(asyncio.wait_for(use_watchers(), 240))


async def wait_for_region(stream: Any, region: str, is_expected: Callable[[str], bool]) -> str:
    """Return a region as soon as it has the expected content."""
    async for messages in stream:
        content = json.loads(messages.partition(b"data: ")[2] or "{}")
        if content.get("region") == region and is_expected(content["html"]):
            return str(content["html"])
    raise AssertionError("the stream ended")


def test_signs_of_life_and_an_event_that_was_seen_is_not_sent_again(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_watchers, "HEARTBEAT_SECONDS", 0.05)

    async def use_watchers(watchers: WatcherRegistry) -> None:
        watcher = watchers.get_watcher("done")
        stream = watcher.stream_events()
        await collect_regions(stream, 5)
        last = f"{watcher.created_ms}.{watcher.version}"
        events = watcher.stream_events(last)
        messages = [await anext(events) for _ in range(3)]
        assert messages == [b"retry: 2000\n\n", b": heartbeat\n\n", b": heartbeat\n\n"]
        watcher.end()
        assert [messages async for messages in events] == [], "the end of the server ends it"
        await stream.aclose()

    run_with_watchers(runs, use_watchers, monkeypatch)


def test_a_fault_of_ours_is_raised_in_the_stream_and_not_swallowed(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail_to_read(self: ExperimentReader) -> Any:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(ExperimentReader, "read_state", fail_to_read)

    async def use_watchers(watchers: WatcherRegistry) -> None:
        with pytest.raises(RuntimeError, match="a fault of ours"):
            await collect_regions(watchers.get_watcher("done").stream_events(), 1)

    run_with_watchers(runs, use_watchers, monkeypatch)


def test_polling_takes_a_small_fraction_of_a_core(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An experiment that is slow to read is polled less often."""
    read_times: list[float] = []
    content = ExperimentReader.read_state

    def read_slowly(self: ExperimentReader) -> Any:
        read_times.append(time.monotonic())
        until = time.process_time() + 0.05
        while time.process_time() < until:
            pass
        return content(self)

    monkeypatch.setattr(ExperimentReader, "read_state", read_slowly)

    async def use_watchers(watchers: WatcherRegistry) -> None:
        stream = watchers.get_watcher("stopped").stream_events()
        await collect_regions(stream, 5)
        async with asyncio.timeout(60):
            while len(read_times) < 2:
                await asyncio.sleep(0.05)
        assert read_times[1] - read_times[0] > live_watchers.COOLDOWN_FACTOR * 0.05
        await stream.aclose()

    run_with_watchers(runs, use_watchers, monkeypatch)


def test_a_look_at_a_large_experiment_costs_little(tmp_path: Path) -> None:
    folder = write_experiment(tmp_path / "large", seeds=100, finished=200)
    reader = ExperimentReader(tmp_path, folder.name)
    reader.read_state()
    times_before = os.times()
    for _ in range(5):
        reader.read_state()
    times_after = os.times()
    cpu_seconds = times_after.user + times_after.system - times_before.user - times_before.system
    assert cpu_seconds / 5 < 0.1


PAIR = {"metric": "rouge-1", "system": "distilled", "reference": "baseline", "outcome": "hurt", "effect": -0.1854}
PAIR |= {"interval": [-0.2573, -0.1134], "seeds": 3, "examples": 199}
PAIR |= {"min_detectable_effect": 0.1, "adjusted_confidence": 0.95}
PAIR |= {"bootstrap": {"value": -0.1854, "interval": [-0.26, -0.11], "positive_share": 0.0, "num_documents": 199}}
EMPTY_SECTIONS: dict[str, object] = {"scores": {}, "costs": {}, "num_truncated": {}}
EMPTY_SECTIONS |= {"examples": [], "published": [], "claims": []}
SUMMARIZATION = {"signature": "rouge", "num_documents": 199, "pairs": [PAIR], **EMPTY_SECTIONS}


def test_summaries_are_judged_by_rouge_before_perplexity(client: TestClient, runs: Path) -> None:
    content = read_json(runs / "done" / "findings.json")
    write_json(runs / "done" / "findings.json", {**content, "summarization": SUMMARIZATION})
    output = unescape(client.get("/experiments/done").text)
    assert (
        output.index("ROUGE-1 0.1854 lower") < output.index("By perplexity") < output.index("alibi helped: perplexity")
    )
    assert "distilled against baseline: hurt" in client.get("/").text


WARNING = {"kind": "changed nothing", "variant": "alibi", "message": "<b>alibi</b>: equal.", "advice": "Check it."}


@pytest.mark.parametrize("invalid_value", [None, 7, [7], [{"kind": 3}]])
def test_warnings_are_stated_above_the_verdicts(client: TestClient, runs: Path, invalid_value: object) -> None:
    content = read_json(runs / "done" / "findings.json")
    write_json(runs / "done" / "findings.json", {**content, "warnings": [WARNING]})
    text = client.get("/experiments/done").text
    assert text.index("&lt;b&gt;alibi&lt;/b&gt;: equal. Check it.") < text.index("alibi helped: perplexity")
    assert client.get("/api/experiments/done").json()["warnings"] == [WARNING]
    write_json(runs / "done" / "findings.json", {**content, "warnings": invalid_value})
    assert "alibi helped: perplexity" not in client.get("/experiments/done").text, "invalid findings are ignored"


@pytest.mark.parametrize(
    "invalid_value",
    [
        7,
        [],
        {"pairs": 7},
        {"pairs": [[]]},
        {"pairs": [{**PAIR, "outcome": []}]},
        {"pairs": [{**PAIR, "effect": "much"}]},
    ],
)
def test_findings_with_invalid_summaries_are_ignored(client: TestClient, runs: Path, invalid_value: object) -> None:
    content = read_json(runs / "done" / "findings.json")
    write_json(runs / "done" / "findings.json", {**content, "summarization": invalid_value})
    assert "alibi helped: perplexity" not in client.get("/experiments/done").text
    assert "alibi: helped" not in client.get("/").text
