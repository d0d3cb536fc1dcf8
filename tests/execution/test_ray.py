"""Tests on a local Ray cluster of two nodes with separate caches."""

import dataclasses
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from safetensors.numpy import load_file

from headtohead.atomic_io import compute_sha256
from headtohead.errors import RequestError
from headtohead.execution.ray import artifacts
from headtohead.execution.ray.backend import build_ray_pool
from headtohead.execution.ray.command_runner import build_ray_process_runner
from headtohead.execution.worker_pool import Job
from headtohead.experiment.run_folder import Run
from headtohead.json_files import has_valid_json_checksum, read_json
from headtohead.runner import run_experiment
from headtohead.versus.command_runner import CommandProcess
from headtohead.versus.comparison_folder import ComparisonFolder
from headtohead.versus.config import VersusConfig, build_command_settings, build_comparison_config
from headtohead.versus.run_comparison import run_comparison

ray = pytest.importorskip("ray")

Small = Callable[..., Any]
pytestmark = pytest.mark.timeout(900)  # a cluster takes its time to start
MEASURED_KEYS = ("seconds", "seconds_per_step", "peak_memory", "trial_seconds", "tokens_per_second")


class TwoNodeCluster:
    """Two Ray nodes with one core each."""

    def __init__(self, root: Path) -> None:
        from ray.cluster_utils import Cluster

        self.root = root
        self.cluster = Cluster()
        self.nodes = [self.add_node("head"), self.add_node("other")]

    def add_node(self, name: str) -> Any:
        return self.cluster.add_node(num_cpus=1, env_vars={"XDG_CACHE_HOME": str(self.root / name)})

    @property
    def backend(self) -> str:
        return f"ray:{self.cluster.address}"

    def list_unpacked_artifacts(self, name: str) -> list[str]:
        return sorted(path.name for path in (self.root / name / "headtohead" / "artifacts").glob("*/[!.]*"))


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoNodeCluster]:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    result = TwoNodeCluster(tmp_path_factory.mktemp("machines"))
    yield result
    ray.shutdown()
    result.cluster.shutdown()


def read_reproducible_content(folder: Path) -> dict[str, Any]:
    """Return the content of a run folder without times and memory."""
    results: dict[str, Any] = {}
    for result in sorted(folder.rglob("result.json")):
        run = Run(result.parent)
        content = {
            k: v for k, v in run.result.to_json().items() if k not in (*MEASURED_KEYS, "sha256", "checksum", "training")
        }
        content["training"] = {k: v for k, v in run.result.to_json()["training"].items() if k not in MEASURED_KEYS}
        content["metrics"] = [
            {k: v for k, v in line.to_json().items() if k not in MEASURED_KEYS} for line in run.metrics
        ]
        content["files"] = sorted(p.name for p in run.folder.iterdir())
        content["weights"] = [compute_sha256(path) for path in run.folder.glob("model.safetensors")]
        content["scores"] = {k: v.tolist() for k, v in load_file(run.folder / "scores.safetensors").items()}
        results[str(run.folder.relative_to(folder))] = content
    return results


OWN_PARTS = Path(__file__).parents[1] / "nn" / "parts" / "my_parts.py"


def test_a_cluster_gives_exactly_the_numbers_of_local_workers(small: Small, machines: TwoNodeCluster, tmp_path: Path):
    experiment = small(plugins=[str(OWN_PARTS)], variants={"own": {"model": {"position": "sqrt-alibi"}}})
    local = run_experiment.run_experiment(experiment, tmp_path / "here", num_workers=2)
    remote = run_experiment.run_experiment(experiment, tmp_path / "there", backend=machines.backend)
    assert not local.failed_jobs
    assert not remote.failed_jobs
    assert read_reproducible_content(tmp_path / "here") == read_reproducible_content(tmp_path / "there")
    assert local.findings is not None
    assert remote.findings is not None
    assert local.findings.verdicts == remote.findings.verdicts
    for run in (tmp_path / "there").rglob("seed-*"):
        local_run = tmp_path / "here" / run.relative_to(tmp_path / "there")
        assert Run(run).find_damaged_files() == []
        assert read_json(run / "trial.json") == read_json(local_run / "trial.json")
        assert has_valid_json_checksum(read_json(run / "result.json"))
    # Each machine fetched the corpus and the parts, once.
    assert (
        machines.list_unpacked_artifacts("head") == machines.list_unpacked_artifacts("other") == ["my_parts.py", "text"]
    )


def test_the_code_that_runs_there_is_the_code_that_was_sent(small: Small, machines: TwoNodeCluster, tmp_path: Path):
    run_experiment.run_experiment(small(seeds=1), tmp_path / "runs", backend=machines.backend)

    @ray.remote(num_cpus=1)
    def locate_package() -> tuple[str, str]:
        from importlib import metadata

        import headtohead

        return str(headtohead.__file__), metadata.version("headtohead")

    file, version = ray.get(locate_package.remote())
    assert "runtime_resources" in file
    assert version == read_json(tmp_path / "runs" / "baseline" / "seed-0" / "start.json")["versions"]["headtohead"]


def test_a_search_runs_on_a_cluster_too(small: Small, machines: TwoNodeCluster, tmp_path: Path):
    request = small(seeds=1, search={"space": {"training.optimizer.lr": [1e-3, 1e-2]}, "seeds": 1})
    local = run_experiment.run_experiment(request, tmp_path / "here", num_workers=2)
    experiment = run_experiment.run_experiment(request, tmp_path / "there", backend=machines.backend)
    assert not local.failed_jobs
    assert not experiment.failed_jobs
    assert read_reproducible_content(tmp_path / "here") == read_reproducible_content(tmp_path / "there")


def test_a_node_that_dies_is_survived_with_the_same_numbers(small: Small, machines: TwoNodeCluster, tmp_path: Path):
    experiment = small(training={"budget": "300 steps", "checkpoint_every": 20})
    removed_nodes: list[Any] = []

    def remove_node_once(jobs: list[Job]) -> None:
        busy_jobs = [job for job in jobs if job.state == "running" and list(job.folder.glob("checkpoint-*"))]
        if not removed_nodes and len(busy_jobs) == 2:
            removed_nodes.append(machines.nodes.pop())
            machines.cluster.remove_node(removed_nodes[0], allow_graceful=False)

    outcome = run_experiment.run_experiment(
        experiment, tmp_path / "killed", backend=machines.backend, on_update=remove_node_once
    )
    assert removed_nodes
    assert not outcome.failed_jobs
    assert sum(job.num_reassignments for job in outcome.jobs) == 1
    run_experiment.run_experiment(experiment, tmp_path / "whole", num_workers=2)
    assert read_reproducible_content(tmp_path / "killed") == read_reproducible_content(tmp_path / "whole")
    for trial in (tmp_path / "killed").rglob("trial.json"):
        assert read_json(trial) == read_json(tmp_path / "whole" / trial.relative_to(tmp_path / "killed"))


def test_workers_share_a_gpu(machines: TwoNodeCluster, tmp_path: Path):
    """Ray counts the GPUs that a node declares, whether or not they exist."""
    node = machines.cluster.add_node(num_cpus=2, num_gpus=1)
    try:
        pool = build_ray_pool(machines.backend, 2, "cuda")
        workers = [pool.spawn(queue.Queue(), {}, tmp_path / "log") for _ in range(2)]
        ray.get([worker._actor.__ray_ready__.remote() for worker in workers], timeout=300)  # both at once
        assert ray.available_resources().get("GPU", 0) == 0
        for worker in workers:
            worker.end()
    finally:
        machines.cluster.remove_node(node)


def build_versus_config(**options: Any) -> VersusConfig:
    """Return a comparison of two commands that print a loss that depends on the seed."""
    script = "import os; print('loss=' + str(2 + int(os.environ['H2H_SEED']) / 7))"
    commands = [f'{sys.executable} -c "{script}" {{seed}}', f'{sys.executable} -c "{script}" {{seed}} variant']
    settings = build_command_settings(commands, None, {}, noise=False)
    return build_comparison_config({**settings, "metric": "loss", "seeds": 3, **options}, "test")


def read_values(comparison: ComparisonFolder) -> dict[str, list[float | None]]:
    runs = comparison.read_runs()
    return {name: [run.value for _, run in sorted(runs_by_seed.items())] for name, runs_by_seed in runs.items()}


def test_commands_run_on_a_cluster_and_give_the_values_of_this_machine(machines: TwoNodeCluster, tmp_path: Path):
    run_process, num_workers = build_ray_process_runner(machines.backend)
    assert num_workers == int(ray.cluster_resources()["CPU"])
    # One at a time: the two nodes unpack the code into the same folder, because they share this machine's disk.
    there = run_comparison(tmp_path / "there", build_versus_config(), directory=tmp_path, run_process=run_process)
    here = run_comparison(tmp_path / "here", build_versus_config(), directory=tmp_path)
    assert read_values(there) == read_values(here)
    assert read_values(here)["baseline"] == [pytest.approx(2 + seed / 7) for seed in range(3)]
    assert "loss=2.0" in (there.get_run_folder("baseline", 0) / "output.log").read_text()


def test_a_command_on_a_cluster_ends_with_the_comparison_and_its_errors_are_shown(
    machines: TwoNodeCluster, tmp_path: Path
):
    run_process, _ = build_ray_process_runner(machines.backend)
    pid_file, stop_event = tmp_path / "pid", threading.Event()
    script = f"import os, pathlib, time; pathlib.Path({str(pid_file)!r}).write_text(str(os.getpid())); time.sleep(600)"
    process = CommandProcess((sys.executable, "-c", script), tmp_path, dict(os.environ), tmp_path / "log", None)

    def stop_when_running() -> None:
        while not (pid_file.is_file() and pid_file.read_text()):
            time.sleep(0.05)
        stop_event.set()

    threading.Thread(target=stop_when_running, daemon=True).start()
    with pytest.raises(InterruptedError, match="python"):
        run_process(process, stop_event)
    assert not psutil.pid_exists(int(pid_file.read_text()))
    elsewhere = dataclasses.replace(process, working_directory=tmp_path / "elsewhere")
    with pytest.raises(RequestError, match="--backend ray needs a shared file system"):
        run_process(elsewhere, threading.Event())
    missing = dataclasses.replace(process, arguments=("no-such-program",))
    with pytest.raises(RequestError, match="no-such-program: No such file or directory"):
        run_process(missing, threading.Event())


def test_a_cluster_that_does_not_exist_is_reported(small: Small, tmp_path: Path):
    with pytest.raises(RequestError, match="allowed: ray"):
        run_experiment.run_experiment(small(), tmp_path / "runs", backend="slurm")
    assert not (tmp_path / "runs").exists()


def test_a_run_folder_that_comes_back_replaces_what_is_here(tmp_path: Path):
    remote_folder, local_folder = tmp_path / "there", tmp_path / "here"
    for folder in (remote_folder, local_folder):
        (folder / "own").mkdir(parents=True)
    (remote_folder / "checkpoint-000040").mkdir()
    (remote_folder / "checkpoint-000040" / "weights").write_text("new")
    (remote_folder / "metrics.jsonl").write_text("1\n2\n")
    (remote_folder / "own" / "part.py").write_text("x = 2")
    (remote_folder / ".hidden.part").write_text("half")
    (local_folder / "checkpoint-000020").mkdir()
    (local_folder / "metrics.jsonl").write_text("1\n")
    artifacts.unpack_run_folder(artifacts.pack_run_folder(remote_folder), local_folder)
    assert sorted(path.name for path in local_folder.iterdir()) == ["checkpoint-000040", "metrics.jsonl", "own"]
    assert (local_folder / "metrics.jsonl").read_text() == "1\n2\n"
    assert (local_folder / "own" / "part.py").read_text() == "x = 2"


def test_an_archive_cannot_leave_its_folder(tmp_path: Path):
    import io
    import tarfile

    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        entry = tarfile.TarInfo("../outside")
        entry.size = 1
        tar.addfile(entry, io.BytesIO(b"x"))
    (tmp_path / "run").mkdir()
    with pytest.raises(tarfile.OutsideDestinationError, match="outside"):
        artifacts.unpack_run_folder(buffer.getvalue(), tmp_path / "run")
    assert not (tmp_path / "outside").exists()
