"""A cluster of two machines, as far as one machine can be two: two Ray nodes with caches of their own."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

from headtohead.atomic_io import compute_sha256, has_valid_checksum, read_json
from headtohead.errors import RequestError
from headtohead.execution.ray import artifacts
from headtohead.execution.worker_pool import Job
from headtohead.experiment.run_folder import Run
from headtohead.runner import run_experiment

ray = pytest.importorskip("ray")

Small = Callable[..., Any]
pytestmark = pytest.mark.timeout(900)  # a cluster takes its time to start
TIMES = ("seconds", "seconds_per_step", "peak_memory", "trial_seconds", "tokens_per_second")


class Machines:
    """Two Ray nodes of one core each."""

    def __init__(self, root: Path) -> None:
        from ray.cluster_utils import Cluster

        self.root = root
        self.cluster = Cluster()
        self.nodes = [self.add("head"), self.add("other")]

    def add(self, name: str) -> Any:
        return self.cluster.add_node(num_cpus=1, env_vars={"XDG_CACHE_HOME": str(self.root / name)})

    @property
    def on(self) -> str:
        return f"ray:{self.cluster.address}"

    def artifacts(self, name: str) -> list[str]:
        return sorted(path.name for path in (self.root / name / "headtohead" / "artifacts").glob("*/[!.]*"))


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    found = Machines(tmp_path_factory.mktemp("machines"))
    yield found
    ray.shutdown()
    found.cluster.shutdown()


def numbers(folder: Path) -> dict[str, Any]:
    """All that a run holds but for times and memory."""
    found: dict[str, Any] = {}
    for result in sorted(folder.rglob("result.json")):
        run = Run(result.parent)
        about = {k: v for k, v in run.result.to_json().items() if k not in (*TIMES, "sha256", "checksum", "training")}
        about["training"] = {k: v for k, v in run.result.to_json()["training"].items() if k not in TIMES}
        about["metrics"] = [{k: v for k, v in line.to_json().items() if k not in TIMES} for line in run.metrics]
        about["files"] = sorted(p.name for p in run.folder.iterdir())
        about["weights"] = [compute_sha256(path) for path in run.folder.glob("model.safetensors")]
        about["scores"] = {k: v.tolist() for k, v in load_file(run.folder / "scores.safetensors").items()}
        found[str(run.folder.relative_to(folder))] = about
    return found


OWN_PARTS = Path(__file__).parents[1] / "nn" / "parts" / "my_parts.py"


def test_a_cluster_gives_exactly_the_numbers_of_local_workers(small: Small, machines: Machines, tmp_path: Path):
    experiment = small(plugins=[str(OWN_PARTS)], variants={"own": {"model": {"position": "sqrt-alibi"}}})
    here = run_experiment.run_experiment(experiment, tmp_path / "here", num_workers=2)
    there = run_experiment.run_experiment(experiment, tmp_path / "there", backend=machines.on)
    assert not here.failed_jobs
    assert not there.failed_jobs
    assert numbers(tmp_path / "here") == numbers(tmp_path / "there")
    assert here.findings is not None
    assert there.findings is not None
    assert here.findings.verdicts == there.findings.verdicts
    for run in (tmp_path / "there").rglob("seed-*"):
        twin = tmp_path / "here" / run.relative_to(tmp_path / "there")
        assert Run(run).find_damaged_files() == []
        assert read_json(run / "trial.json") == read_json(twin / "trial.json")
        assert has_valid_checksum(read_json(run / "result.json"))
    # Each machine fetched the corpus and the parts, once.
    assert machines.artifacts("head") == machines.artifacts("other") == ["my_parts.py", "text"]


def test_the_code_that_runs_there_is_the_code_that_was_sent(small: Small, machines: Machines, tmp_path: Path):
    run_experiment.run_experiment(small(seeds=1), tmp_path / "runs", backend=machines.on)

    @ray.remote(num_cpus=1)
    def where() -> tuple[str, str]:
        from importlib import metadata

        import headtohead

        return str(headtohead.__file__), metadata.version("headtohead")

    file, version = ray.get(where.remote())
    assert "runtime_resources" in file
    assert version == read_json(tmp_path / "runs" / "baseline" / "seed-0" / "start.json")["versions"]["headtohead"]


def test_a_search_runs_on_a_cluster_too(small: Small, machines: Machines, tmp_path: Path):
    asked = small(seeds=1, search={"space": {"training.optimizer.lr": [1e-3, 1e-2]}, "seeds": 1})
    here = run_experiment.run_experiment(asked, tmp_path / "here", num_workers=2)
    there = run_experiment.run_experiment(asked, tmp_path / "there", backend=machines.on)
    assert not here.failed_jobs
    assert not there.failed_jobs
    assert numbers(tmp_path / "here") == numbers(tmp_path / "there")


def test_a_node_that_dies_is_survived_with_the_same_numbers(small: Small, machines: Machines, tmp_path: Path):
    experiment = small(training={"steps": 300, "checkpoint_every": 20})
    killed: list[int] = []

    def kill_one(jobs: list[Job]) -> None:
        busy = [job for job in jobs if job.state == "running" and list(job.folder.glob("checkpoint-*"))]
        if not killed and len(busy) == 2:
            killed.append(1)
            machines.cluster.remove_node(machines.nodes.pop(), allow_graceful=False)

    outcome = run_experiment.run_experiment(experiment, tmp_path / "killed", backend=machines.on, on_update=kill_one)
    assert killed
    assert not outcome.failed_jobs
    assert sum(job.num_reassignments for job in outcome.jobs) == 1
    run_experiment.run_experiment(experiment, tmp_path / "whole", num_workers=2)
    assert numbers(tmp_path / "killed") == numbers(tmp_path / "whole")
    for trial in (tmp_path / "killed").rglob("trial.json"):
        assert read_json(trial) == read_json(tmp_path / "whole" / trial.relative_to(tmp_path / "killed"))


def test_a_cluster_that_is_not_there_is_said(small: Small, tmp_path: Path):
    with pytest.raises(RequestError, match="allowed: ray"):
        run_experiment.run_experiment(small(), tmp_path / "runs", backend="slurm")
    assert not (tmp_path / "runs").exists()


def test_a_run_folder_that_comes_back_replaces_what_is_here(tmp_path: Path):
    there, here = tmp_path / "there", tmp_path / "here"
    for folder in (there, here):
        (folder / "own").mkdir(parents=True)
    (there / "checkpoint-000040").mkdir()
    (there / "checkpoint-000040" / "weights").write_text("new")
    (there / "metrics.jsonl").write_text("1\n2\n")
    (there / "own" / "part.py").write_text("x = 2")
    (there / ".hidden.part").write_text("half")
    (here / "checkpoint-000020").mkdir()
    (here / "metrics.jsonl").write_text("1\n")
    artifacts.unpack_run_folder(artifacts.pack_run_folder(there), here)
    assert sorted(path.name for path in here.iterdir()) == ["checkpoint-000040", "metrics.jsonl", "own"]
    assert (here / "metrics.jsonl").read_text() == "1\n2\n"
    assert (here / "own" / "part.py").read_text() == "x = 2"


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
