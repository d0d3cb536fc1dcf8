"""TensorBoard, Weights & Biases and trackio behind one small protocol. Each imports its package at first use."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from headtohead.execution.trackers import LOGS_FOLDER

WANDB_PROJECT = "headtohead"
VERDICTS_RUN = "verdicts"
Metrics = dict[str, float]


class TrackerBackend(Protocol):
    """What a tracker can do. A run is named by its place in the experiment's folder: baseline/seed-0."""

    def begin(self, run: str, settings: Mapping[str, Any], *, is_resumed: bool) -> None:
        """A run, with its settings; `again`: it was begun before."""

    def point(self, run: str, step: int, metrics: Metrics) -> None:
        """Metrics of a step."""

    def end(self, run: str, step: int, summary: Mapping[str, Any]) -> None:
        """What came out."""

    def flush(self) -> None:
        """What was said so far is to be safe now."""

    def verdicts(self, rows: list[dict[str, Any]], *, is_resumed: bool) -> None:
        """What the experiment found."""

    def close(self) -> None:
        """Nothing more will come."""


class TensorBoardBackend:
    """Event files in logs/tensorboard/RUN, written without tensorflow or torch."""

    def __init__(self, folder: Path, experiment: str, run_id_salt: str) -> None:
        self.folder = folder / LOGS_FOLDER / "tensorboard"
        self.writers: dict[str, Any] = {}

    def begin(self, run: str, settings: Mapping[str, Any], *, is_resumed: bool) -> None:
        if not is_resumed:
            self._write_text(run, "settings", _render_markdown_table(settings), 0)

    def point(self, run: str, step: int, metrics: Metrics) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        found = [Summary.Value(tag=name, simple_value=value) for name, value in metrics.items()]
        self._write(run, Summary(value=found), step)

    def end(self, run: str, step: int, summary: Mapping[str, Any]) -> None:
        self.point(run, step, {name: value for name, value in summary.items() if not isinstance(value, str)})
        self._write_text(run, "result", _render_markdown_table(summary), step)
        self.writers.pop(run).close()

    def flush(self) -> None:
        for writer in self.writers.values():
            writer.flush()

    def verdicts(self, rows: list[dict[str, Any]], *, is_resumed: bool) -> None:
        for row in rows:
            self._write_text(VERDICTS_RUN, row["variant"], row["sentence"], row["seeds"])
            self.point(VERDICTS_RUN, row["seeds"], _extract_verdict_metrics(row))

    def close(self) -> None:
        for writer in self.writers.values():
            writer.close()

    def _write_text(self, run: str, tag: str, text: str, step: int) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
        from tensorboard.compat.proto.tensor_pb2 import TensorProto
        from tensorboard.compat.proto.types_pb2 import DT_STRING

        shown = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"))
        tensor = TensorProto(dtype=DT_STRING, string_val=[text.encode()])
        self._write(run, Summary(value=[Summary.Value(tag=tag, metadata=shown, tensor=tensor)]), step)

    def _write(self, run: str, summary: Any, step: int) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        if run not in self.writers:
            self.writers[run] = EventFileWriter(str(self.folder / run))
        self.writers[run].add_event(Event(wall_time=time.time(), step=step, summary=summary))


class WandbBackend:
    """Weights & Biases: online, or offline with WANDB_MODE=offline. A group is an experiment."""

    def __init__(self, folder: Path, experiment: str, run_id_salt: str) -> None:
        self.folder, self.experiment, self.token = folder / LOGS_FOLDER, experiment, run_id_salt
        self.runs: dict[str, Any] = {}

    def begin(self, run: str, settings: Mapping[str, Any], *, is_resumed: bool) -> None:
        import wandb

        quiet = wandb.Settings(
            console="off", silent=True, disable_git=True, save_code=False, x_disable_stats=True, x_disable_meta=True
        )
        opened = wandb.init(
            project=None if "WANDB_PROJECT" in os.environ else WANDB_PROJECT,
            group=self.experiment,
            job_type=run.rpartition("/")[0] or run,
            name=f"{self.experiment}/{run}",
            id=hashlib.sha256(f"{self.token}/{run}".encode()).hexdigest()[:16],
            resume="allow",
            config=dict(settings),
            dir=None if "WANDB_DIR" in os.environ else self.folder,
            reinit="create_new",
            settings=quiet,
        )
        opened.define_metric("step")
        opened.define_metric("*", step_metric="step")
        self.runs[run] = opened

    def point(self, run: str, step: int, metrics: Metrics) -> None:
        # Not as wandb's own step: that one may only grow, and a row at a time.
        self.runs[run].log({"step": step, **metrics})

    def end(self, run: str, step: int, summary: Mapping[str, Any]) -> None:
        opened = self.runs.pop(run)
        opened.summary.update(dict(summary))
        opened.finish(exit_code=1 if "failure" in summary else 0)

    def flush(self) -> None:
        """It is written by a process of wandb's as it comes."""

    def verdicts(self, rows: list[dict[str, Any]], *, is_resumed: bool) -> None:
        self.begin(VERDICTS_RUN, {}, is_resumed=is_resumed)
        found = {f"{row['variant']}/{name}": row[name] for row in rows for name in ("word", "sentence", "seeds")}
        for row in rows:
            found |= _extract_verdict_metrics(row)
        self.end(VERDICTS_RUN, 0, found)

    def close(self) -> None:
        for opened in self.runs.values():
            opened.finish()


class TrackioBackend:
    """trackio: a local database that `trackio show` opens. A project is an experiment, a group a variant. It has one
    run open at a time, so what is said is kept until the next pause."""

    def __init__(self, folder: Path, experiment: str, run_id_salt: str) -> None:
        self.experiment = experiment
        self.about: dict[str, tuple[dict[str, Any], bool]] = {}
        self.said: dict[str, list[tuple[int, dict[str, Any]]]] = {}

    def begin(self, run: str, settings: Mapping[str, Any], *, is_resumed: bool) -> None:
        self.about[run] = dict(settings), is_resumed

    def point(self, run: str, step: int, metrics: Mapping[str, Any]) -> None:
        self.said.setdefault(run, []).append((step, dict(metrics)))

    def end(self, run: str, step: int, summary: Mapping[str, Any]) -> None:
        import trackio

        numbers = {name: value for name, value in summary.items() if not isinstance(value, str)}
        words = {name: trackio.Markdown(value) for name, value in summary.items() if isinstance(value, str)}
        self.point(run, step, {**numbers, **words})

    def flush(self) -> None:
        import trackio

        for run, points in self.said.items():
            settings, again = self.about[run]
            opened = trackio.init(
                project=self.experiment,
                name=run,
                group=run.rpartition("/")[0] or run,
                config=settings,
                resume="allow" if again else "never",
                embed=False,
                auto_log_gpu=False,
                auto_log_cpu=False,
            )
            for step, values in points:
                opened.log(values, step=step)
            opened.finish()
            self.about[run] = settings, True
        self.said.clear()

    def verdicts(self, rows: list[dict[str, Any]], *, is_resumed: bool) -> None:
        self.begin(VERDICTS_RUN, {}, is_resumed=is_resumed)
        for row in rows:
            self.end(VERDICTS_RUN, row["seeds"], {row["variant"]: row["sentence"], **_extract_verdict_metrics(row)})

    def close(self) -> None:
        self.flush()


BACKENDS: dict[str, Any] = {"tensorboard": TensorBoardBackend, "wandb": WandbBackend, "trackio": TrackioBackend}


def _extract_verdict_metrics(row: dict[str, Any]) -> Metrics:
    """A verdict's effect and where it lies, as far as they are known."""
    low, high = row["interval"]
    found = {"effect": row["effect"], "low": low, "high": high}
    return {f"{row['variant']}/{name}": value for name, value in found.items() if value is not None}


def _render_markdown_table(values: Mapping[str, Any]) -> str:
    """In Markdown."""
    return "\n".join(["| setting | value |", "|---|---|", *(f"| {name} | {value} |" for name, value in values.items())])
