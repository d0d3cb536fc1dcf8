"""The state of an experiment from its files, and one watcher for all who look."""

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

from headtohead.atomic_io import read_json, write_json
from headtohead.web import site
from headtohead.web.live import watchers as live_watchers
from headtohead.web.live.experiment_state import ExperimentReader, MetricsTail, downsample_curves
from headtohead.web.live.watchers import ExperimentWatcher, WatcherRegistry

from .conftest import append_metrics, write_experiment, write_verdict


def test_states_steps_and_figures_are_those_of_the_files(runs: Path) -> None:
    live = ExperimentReader(runs, "stopped").read()
    assert (live.state, live.finished, live.question) == ("stopped", 2, "Does it help?")
    assert [(t.variant, t.seed, t.state) for t in live.trials] == [
        ("baseline", 0, "finished"),
        ("alibi", 0, "finished"),
        ("baseline", 1, "stopped"),
        ("alibi", 1, "waiting"),
    ]
    begun = live.trials[2]
    assert (begun.step, begun.steps, begun.value, begun.split) == (10, 20, 20.0, "validation")
    assert live.curves["alibi"] == {"validation": {"0": [[0, 30.0], [10, 20.0]]}}
    assert ExperimentReader(runs, "done").read().state == "finished"


def test_the_figure_of_a_trial_is_that_of_the_split_that_is_judged(runs: Path) -> None:
    run = runs / "stopped" / "baseline" / "seed-1"
    append_metrics(run, 10, "test", 40.0)
    append_metrics(run, 15, "validation", 15.0)
    found = {(t.variant, t.seed): (t.split, t.value) for t in ExperimentReader(runs, "stopped").read().trials}
    assert found["baseline", 1] == ("test", 40.0)
    assert found["alibi", 0] == ("validation", 20.0), "where it is not followed, always the same other one"


def test_whoever_holds_the_lock_is_training(runs: Path) -> None:
    reader = ExperimentReader(runs, "stopped")
    with (runs / ".stopped.lock").open("w") as file:
        assert reader.read().state == "stopped", "a lock that nobody holds says nothing"
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        live = reader.read()
        assert (live.state, live.trials[2].state, live.can_stop) == ("running", "running", False)
    assert reader.read().state == "stopped"


def test_a_failure_is_told_and_a_resume_draws_curves_again(runs: Path) -> None:
    run = runs / "stopped" / "baseline" / "seed-1"
    reader = ExperimentReader(runs, "stopped")
    write_json(run / "failure.json", {"message": "the loss is not a number"})
    live = reader.read()
    assert (live.state, live.trials[2].message) == ("failed", "the loss is not a number")
    (run / "failure.json").unlink()
    (run / "metrics.jsonl").write_text("")
    append_metrics(run, 0, "validation", 31.0)
    assert reader.read().curves["baseline"]["validation"]["1"] == [[0, 31.0]]


def test_only_the_new_end_of_a_growing_file_is_read(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    tail = MetricsTail(file)
    assert tail.read() == []
    append_metrics(tmp_path, 1, "test", 2.0)
    with file.open("ab") as more:
        more.write(b'{"step": 2, "loss": 0.5, "spl')
    assert [line.step for line in tail.read()] == [1]
    first = tail.lines[0]
    with file.open("ab") as more:
        more.write(b'it": "test"}\n')
    assert [line.step for line in tail.read()] == [1, 2]
    assert tail.lines[0] is first
    assert tail.offset == file.stat().st_size


def test_long_curves_are_drawn_at_an_even_choice_of_steps() -> None:
    points = [[step, 1.0] for step in range(1000)]
    kept = downsample_curves({"a": {"test": {"0": points, "1": points[:500]}}})["a"]["test"]
    assert len(kept["0"]) <= 60 and kept["0"][-1][0] == 999
    assert {at for at, _ in kept["1"]} <= {at for at, _ in kept["0"]}


def watch(
    runs: Path, go: Callable[[WatcherRegistry], Coroutine[Any, Any, None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run with watchers that look often and draw nothing."""

    async def nothing(self: ExperimentWatcher, live: Any) -> None:
        return None

    async def run() -> None:
        await go(WatcherRegistry(runs, site.render_region))

    monkeypatch.setattr(live_watchers, "POLL_SECONDS", 0.02)
    monkeypatch.setattr(ExperimentWatcher, "_render_slow_regions", nothing)
    asyncio.run(run())


async def regions(stream: Any, count: int) -> dict[str, str]:
    found: dict[str, str] = {}
    async for sent in stream:
        if b"event: region" in sent:
            told = json.loads(sent.partition(b"data: ")[2])
            found[told["region"]] = told["html"]
        if len(found) >= count:
            return found
    return found


def test_clients_share_one_watcher_that_rests_when_nobody_looks(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = 0
    read = ExperimentReader.read

    def counted(self: ExperimentReader) -> Any:
        nonlocal reads
        reads += 1
        return read(self)

    monkeypatch.setattr(ExperimentReader, "read", counted)

    async def go(watchers: WatcherRegistry) -> None:
        streams = [watchers.get_watcher("stopped").events() for _ in range(50)]
        found = await asyncio.gather(*(regions(stream, 5) for stream in streams))
        assert all(set(one) == {"status", "trials", "audits", "verdicts", "curves"} for one in found)
        assert watchers.get_watcher("stopped").clients == 50
        assert reads < 25, "one read for all of them, not one for each"
        for stream in streams:
            await stream.aclose()
        assert watchers.get_watcher("stopped").clients == 0
        await asyncio.sleep(0.1)
        before = reads
        await asyncio.sleep(0.2)
        assert reads == before

    watch(runs, go, monkeypatch)


def test_a_change_reaches_everybody_and_only_what_changed_is_sent(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def go(watchers: WatcherRegistry) -> None:
        stream = watchers.get_watcher("stopped").events()
        first = await regions(stream, 5)
        assert "2 of 4 trials finished" in first["status"]
        stream = watchers.get_watcher("stopped").events()
        await regions(stream, 5)
        write_json(runs / "stopped" / "baseline" / "seed-1" / "result.json", {})
        news = await regions(stream, 2)
        assert set(news) <= {"status", "trials"}
        assert "3 of 4 trials finished" in news["status"]
        write_verdict(runs / "stopped")
        assert "perplexity 5 % lower" in (await regions(stream, 1))["verdicts"]
        await stream.aclose()

    watch(runs, go, monkeypatch)


def test_a_slow_client_gets_the_latest_and_nothing_piles_up(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def go(watchers: WatcherRegistry) -> None:
        watcher = watchers.get_watcher("stopped")
        stream = watcher.events()
        await regions(stream, 5)
        metrics = runs / "stopped" / "baseline" / "seed-1" / "metrics.jsonl"
        for step in range(11, 31):  # while the client does not read
            append_metrics(metrics.parent, step, "validation", 9.0)
            await asyncio.sleep(0.03)
        await asyncio.sleep(0.3)
        assert len(watcher.regions) == 5
        news = await regions(stream, 1)
        assert "30 of 20" in news["trials"], "the last state, and none of those in between"
        await stream.aclose()

    watch(runs, go, monkeypatch)


def test_a_verdict_is_one_so_far_until_the_last_trial_is_in(runs: Path, finished: Path) -> None:
    """Real run folders and the real process that judges them; the lock is that of a training."""
    there = runs / "real"
    shutil.copytree(finished, there)
    last, found = there / "alibi" / "seed-1" / "result.json", there / "findings.json"
    (runs / "later").mkdir()
    last.rename(runs / "later" / "result.json")
    found.rename(runs / "later" / "findings.json")

    async def go() -> None:
        watchers = WatcherRegistry(runs, site.render_region)
        stream = watchers.get_watcher("real").events()
        with (runs / ".real.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            html = await shown(stream, "verdicts", lambda html: "alibi" in html)
            assert "Interim result" in html and "only the final verdict counts" in html and "<svg" in html
            assert "3 of 4 trials finished" in watchers.get_watcher("real").regions["status"].event.decode()
        (runs / "later" / "result.json").rename(last)
        (runs / "later" / "findings.json").rename(found)
        os.utime(found)
        html = await shown(stream, "verdicts", lambda html: "Interim result" not in html)
        assert read_json(found)["verdicts"][0]["summary"] in unescape(html)
        await stream.aclose()
        await watchers.render_worker.end()

    asyncio.run(asyncio.wait_for(go(), 240))


async def shown(stream: Any, region: str, is_it: Callable[[str], bool]) -> str:
    """A region as soon as it is as it should be."""
    async for sent in stream:
        told = json.loads(sent.partition(b"data: ")[2] or "{}")
        if told.get("region") == region and is_it(told["html"]):
            return str(told["html"])
    raise AssertionError("the stream ended")


def test_signs_of_life_and_an_event_that_was_seen_is_not_sent_again(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_watchers, "HEARTBEAT_SECONDS", 0.05)

    async def go(watchers: WatcherRegistry) -> None:
        watcher = watchers.get_watcher("done")
        stream = watcher.events()
        await regions(stream, 5)
        last = f"{watcher.created_ms}.{watcher.version}"
        again = watcher.events(last)
        sent = [await anext(again) for _ in range(3)]
        assert sent == [b"retry: 2000\n\n", b": heartbeat\n\n", b": heartbeat\n\n"]
        watcher.end()
        assert [sent async for sent in again] == [], "the end of the server ends it"
        await stream.aclose()

    watch(runs, go, monkeypatch)


def test_a_fault_of_ours_is_raised_in_the_stream_and_not_swallowed(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: ExperimentReader) -> Any:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(ExperimentReader, "read", broken)

    async def go(watchers: WatcherRegistry) -> None:
        with pytest.raises(RuntimeError, match="a fault of ours"):
            await regions(watchers.get_watcher("done").events(), 1)

    watch(runs, go, monkeypatch)


def test_looks_take_a_small_share_of_a_core(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An experiment that takes long to look at is looked at less often."""
    began: list[float] = []
    read = ExperimentReader.read

    def slow(self: ExperimentReader) -> Any:
        began.append(time.monotonic())
        until = time.process_time() + 0.05
        while time.process_time() < until:
            pass
        return read(self)

    monkeypatch.setattr(ExperimentReader, "read", slow)

    async def go(watchers: WatcherRegistry) -> None:
        stream = watchers.get_watcher("stopped").events()
        await regions(stream, 5)
        async with asyncio.timeout(60):
            while len(began) < 2:
                await asyncio.sleep(0.05)
        assert began[1] - began[0] > live_watchers.COOLDOWN_FACTOR * 0.05
        await stream.aclose()

    watch(runs, go, monkeypatch)


def test_a_look_at_a_large_experiment_costs_little(tmp_path: Path) -> None:
    folder = write_experiment(tmp_path / "large", seeds=100, finished=200)
    reader = ExperimentReader(tmp_path, folder.name)
    reader.read()
    began = os.times()
    for _ in range(5):
        reader.read()
    used = os.times()
    assert (used.user + used.system - began.user - began.system) / 5 < 0.1


PAIR = {"metric": "rouge-1", "system": "distilled", "reference": "baseline", "outcome": "hurt", "effect": -0.1854}
PAIR |= {"interval": [-0.2573, -0.1134], "seeds": 3, "examples": 199}
PAIR |= {"min_detectable_effect": 0.1, "adjusted_confidence": 0.95}
PAIR |= {"bootstrap": {"value": -0.1854, "interval": [-0.26, -0.11], "positive_share": 0.0, "num_documents": 199}}
EMPTY_SECTIONS: dict[str, object] = {"scores": {}, "costs": {}, "num_truncated": {}}
EMPTY_SECTIONS |= {"examples": [], "published": [], "claims": []}
CONTEST = {"signature": "rouge", "num_documents": 199, "pairs": [PAIR], **EMPTY_SECTIONS}


def test_summaries_are_judged_by_rouge_before_perplexity(client: TestClient, runs: Path) -> None:
    found = read_json(runs / "done" / "findings.json")
    write_json(runs / "done" / "findings.json", {**found, "summarization": CONTEST})
    shown = unescape(client.get("/experiments/done").text)
    assert shown.index("ROUGE-1 0.1854 lower") < shown.index("By perplexity") < shown.index("alibi helped: perplexity")
    assert "distilled against baseline: hurt" in client.get("/").text


WARNING = {"kind": "changed nothing", "variant": "alibi", "message": "<b>alibi</b>: equal.", "advice": "Check it."}


@pytest.mark.parametrize("strange", [None, 7, [7], [{"kind": 3}]])
def test_warnings_are_stated_above_the_verdicts(client: TestClient, runs: Path, strange: object) -> None:
    found = read_json(runs / "done" / "findings.json")
    write_json(runs / "done" / "findings.json", {**found, "warnings": [WARNING]})
    shown = client.get("/experiments/done").text
    assert shown.index("&lt;b&gt;alibi&lt;/b&gt;: equal. Check it.") < shown.index("alibi helped: perplexity")
    assert client.get("/api/experiments/done").json()["warnings"] == [WARNING]
    write_json(runs / "done" / "findings.json", {**found, "warnings": strange})
    assert "alibi helped: perplexity" not in client.get("/experiments/done").text, "invalid findings are ignored"


@pytest.mark.parametrize(
    "strange",
    [
        7,
        [],
        {"pairs": 7},
        {"pairs": [[]]},
        {"pairs": [{**PAIR, "outcome": []}]},
        {"pairs": [{**PAIR, "effect": "much"}]},
    ],
)
def test_findings_with_a_strange_contest_are_ignored(client: TestClient, runs: Path, strange: object) -> None:
    found = read_json(runs / "done" / "findings.json")
    write_json(runs / "done" / "findings.json", {**found, "summarization": strange})
    assert "alibi helped: perplexity" not in client.get("/experiments/done").text
    assert "alibi: helped" not in client.get("/").text
