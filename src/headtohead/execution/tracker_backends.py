"""TensorBoard, Weights & Biases and trackio behind one small protocol. Each imports its package at first use."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from headtohead.execution.trackers import PLACE

PROJECT = "headtohead"
VERDICTS = "verdicts"
Values = dict[str, float]


class Tracker(Protocol):
    """What a tracker can do. A run is named by its place in the experiment's folder: baseline/seed-0."""

    def begin(self, run: str, settings: Mapping[str, Any], *, again: bool) -> None:
        """A run, with its settings; `again`: it was begun before."""

    def point(self, run: str, step: int, values: Values) -> None:
        """Metrics of a step."""

    def end(self, run: str, step: int, summary: Mapping[str, Any]) -> None:
        """What came out."""

    def pause(self) -> None:
        """What was said so far is to be safe now."""

    def verdicts(self, rows: list[dict[str, Any]], *, again: bool) -> None:
        """What the experiment found."""

    def close(self) -> None:
        """Nothing more will come."""


class TensorBoard:
    """Event files in logs/tensorboard/RUN, written without tensorflow or torch."""

    def __init__(self, folder: Path, experiment: str, token: str) -> None:
        self.folder = folder / PLACE / "tensorboard"
        self.writers: dict[str, Any] = {}

    def begin(self, run: str, settings: Mapping[str, Any], *, again: bool) -> None:
        if not again:
            self._text(run, "settings", _table(settings), 0)

    def point(self, run: str, step: int, values: Values) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        found = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._write(run, Summary(value=found), step)

    def end(self, run: str, step: int, summary: Mapping[str, Any]) -> None:
        self.point(run, step, {name: value for name, value in summary.items() if not isinstance(value, str)})
        self._text(run, "result", _table(summary), step)
        self.writers.pop(run).close()

    def pause(self) -> None:
        for writer in self.writers.values():
            writer.flush()

    def verdicts(self, rows: list[dict[str, Any]], *, again: bool) -> None:
        for row in rows:
            self._text(VERDICTS, row["variant"], row["sentence"], row["seeds"])
            self.point(VERDICTS, row["seeds"], _numbers(row))

    def close(self) -> None:
        for writer in self.writers.values():
            writer.close()

    def _text(self, run: str, tag: str, text: str, step: int) -> None:
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


class WandB:
    """Weights & Biases: online, or offline with WANDB_MODE=offline. A group is an experiment."""

    def __init__(self, folder: Path, experiment: str, token: str) -> None:
        self.folder, self.experiment, self.token = folder / PLACE, experiment, token
        self.runs: dict[str, Any] = {}

    def begin(self, run: str, settings: Mapping[str, Any], *, again: bool) -> None:
        import wandb

        quiet = wandb.Settings(
            console="off", silent=True, disable_git=True, save_code=False, x_disable_stats=True, x_disable_meta=True
        )
        opened = wandb.init(
            project=None if "WANDB_PROJECT" in os.environ else PROJECT,
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

    def point(self, run: str, step: int, values: Values) -> None:
        # Not as wandb's own step: that one may only grow, and a row at a time.
        self.runs[run].log({"step": step, **values})

    def end(self, run: str, step: int, summary: Mapping[str, Any]) -> None:
        opened = self.runs.pop(run)
        opened.summary.update(dict(summary))
        opened.finish(exit_code=1 if "failure" in summary else 0)

    def pause(self) -> None:
        """It is written by a process of wandb's as it comes."""

    def verdicts(self, rows: list[dict[str, Any]], *, again: bool) -> None:
        self.begin(VERDICTS, {}, again=again)
        found = {f"{row['variant']}/{name}": row[name] for row in rows for name in ("word", "sentence", "seeds")}
        for row in rows:
            found |= _numbers(row)
        self.end(VERDICTS, 0, found)

    def close(self) -> None:
        for opened in self.runs.values():
            opened.finish()


class Trackio:
    """trackio: a local database that `trackio show` opens. A project is an experiment, a group a variant. It has one
    run open at a time, so what is said is kept until the next pause."""

    def __init__(self, folder: Path, experiment: str, token: str) -> None:
        self.experiment = experiment
        self.about: dict[str, tuple[dict[str, Any], bool]] = {}
        self.said: dict[str, list[tuple[int, dict[str, Any]]]] = {}

    def begin(self, run: str, settings: Mapping[str, Any], *, again: bool) -> None:
        self.about[run] = dict(settings), again

    def point(self, run: str, step: int, values: Mapping[str, Any]) -> None:
        self.said.setdefault(run, []).append((step, dict(values)))

    def end(self, run: str, step: int, summary: Mapping[str, Any]) -> None:
        import trackio

        numbers = {name: value for name, value in summary.items() if not isinstance(value, str)}
        words = {name: trackio.Markdown(value) for name, value in summary.items() if isinstance(value, str)}
        self.point(run, step, {**numbers, **words})

    def pause(self) -> None:
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

    def verdicts(self, rows: list[dict[str, Any]], *, again: bool) -> None:
        self.begin(VERDICTS, {}, again=again)
        for row in rows:
            self.end(VERDICTS, row["seeds"], {row["variant"]: row["sentence"], **_numbers(row)})

    def close(self) -> None:
        self.pause()


TRACKERS: dict[str, Any] = {"tensorboard": TensorBoard, "wandb": WandB, "trackio": Trackio}


def _numbers(row: dict[str, Any]) -> Values:
    """A verdict's effect and where it lies, as far as they are known."""
    low, high = row["interval"]
    found = {"effect": row["effect"], "low": low, "high": high}
    return {f"{row['variant']}/{name}": value for name, value in found.items() if value is not None}


def _table(values: Mapping[str, Any]) -> str:
    """In Markdown."""
    return "\n".join(["| setting | value |", "|---|---|", *(f"| {name} | {value} |" for name, value in values.items())])
