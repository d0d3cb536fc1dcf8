"""Coverage-guided fuzzing with atheris (libFuzzer): python tools/fuzz.py [TARGET ...] --minutes N

Every target of tools/fuzz_targets receives mutations of valid inputs, in a separate process with limits on memory and
time per input; only the package is instrumented. An input is kept in OUT/TARGET/faults, one per kind of failure, with
the command that reproduces it, if it raises anything but the package's own errors, accesses files outside its scratch
folder, or exceeds a limit. OUT/summary.json contains the time and number of inputs per target. The exit code is 1 if
anything was found.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import re
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

for _variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")
os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
sys.path.insert(0, str(Path(__file__).parents[1]))

MAX_CPU_SECONDS_PER_INPUT = 10
"""an input that takes longer is a fault"""
MAX_WALL_SECONDS_PER_INPUT = 30 * MAX_CPU_SECONDS_PER_INPUT
"""libFuzzer ends the process after this time; on a busy machine it is much longer than the CPU time"""
MAX_MEMORY_MB = 3000
"""for the whole process, including torch and the valid inputs"""
MAX_INPUT_BYTES = 1 << 16
MAX_ENDED_PROCESSES = 50
"""after this many inputs that end the process, fuzzing of a target stops"""


def main() -> int:
    """Run the requested fuzz targets one after the other."""
    arguments = _parse_arguments()
    if arguments.again:
        return _reproduce(arguments.targets[0], arguments.again)
    import atheris

    with atheris.instrument_imports(include=["headtohead"]):
        from tools.fuzz_targets import FUZZ_TARGETS

        unknown_names = [name for name in arguments.targets if name not in FUZZ_TARGETS]
        if unknown_names:
            print(f"no fuzz target named {unknown_names[0]!r}; available: {', '.join(FUZZ_TARGETS)}", file=sys.stderr)
            return 2
        names = arguments.targets or list(FUZZ_TARGETS)
        seeds_by_target = _prepare_seeds(names, arguments.out)
    os.nice(arguments.nice)
    reports = [
        _fuzz_target(name, seeds_by_target[name], 60 * arguments.minutes / len(names), arguments.out) for name in names
    ]
    minutes = sum(report["seconds"] for report in reports) / 60
    num_inputs = sum(report["executions"] for report in reports)
    num_faults = sum(report["faults"] for report in reports)
    print(f"{len(names)} fuzz targets, {minutes:.1f} minutes, {num_inputs:,} inputs, {num_faults} kinds of faults")
    return 1 if num_faults else 0


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help="fuzz targets (default: all)")
    parser.add_argument("--minutes", type=float, default=30, help="total for all targets")
    parser.add_argument("--nice", type=int, default=0, help="niceness of the fuzzing processes")
    parser.add_argument("--out", type=Path, default=Path(".fuzz"), help="corpora, faults and summary.json")
    parser.add_argument("--again", type=Path, metavar="INPUT", help="run a target once on this input")
    return parser.parse_args()


def _prepare_seeds(names: Sequence[str], out: Path) -> dict[str, Sequence[bytes]]:
    """Return valid inputs for each target.

    Each input is processed once, so that everything a target imports is instrumented; fuzzing processes are forks of
    this one.
    """
    from tools.fuzz_targets import FUZZ_TARGETS, run_target

    scratch = out.resolve() / "scratch"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    seeds_by_target = {name: FUZZ_TARGETS[name].build_seeds(scratch) for name in names}
    for name, seeds in seeds_by_target.items():
        for seed in seeds:
            with contextlib.suppress(Exception):
                run_target(name, seed, scratch)
    shutil.rmtree(out / "sound", ignore_errors=True)
    shutil.copytree(scratch, out / "sound")
    return seeds_by_target


def _restore_scratch_folder(out: Path) -> None:
    """Restore the scratch folder with the files of the valid inputs."""
    shutil.rmtree(out / "scratch", ignore_errors=True)
    shutil.copytree(out / "sound", out / "scratch")


def _fuzz_target(name: str, seeds: Sequence[bytes], seconds: float, out: Path) -> dict[str, Any]:
    """Fuzz one target until the time is over; start a new process if an input ends it."""
    corpus, faults, log = out / name / "corpus", out / name / "faults", out / name / "log"
    for folder in (corpus, faults):
        folder.mkdir(parents=True, exist_ok=True)
    for seed in seeds:
        (corpus / hashlib.sha256(seed).hexdigest()[:16]).write_bytes(seed)
    dictionary = sorted({word for seed in seeds for word in re.findall(rb"[A-Za-z_][\w.-]{2,24}", seed[:20_000])})
    (out / name / "words").write_text("".join(f'"{word.decode()}"\n' for word in dictionary[:2000]))
    wall_seconds, cpu_seconds = 0.0, 0.0
    num_executions, num_ended_processes = 0, 0
    while seconds - wall_seconds >= 1 and num_ended_processes < MAX_ENDED_PROCESSES:
        start_time = time.time()
        log.unlink(missing_ok=True)
        child = os.fork()
        if not child:
            _fuzz_in_child(name, seconds - wall_seconds, out)
        _, status, usage = os.wait4(child, 0)
        wall_seconds += time.time() - start_time
        cpu_seconds += usage.ru_utime + usage.ru_stime
        execution_counts = re.findall(r"stat::number_of_executed_units: (\d+)", log.read_text(errors="replace"))
        num_executions += int(execution_counts[-1]) if execution_counts else 0
        if status:
            num_ended_processes += 1
            _restore_scratch_folder(out)  # an ended process may have left it incomplete
    num_faults = len([*faults.glob("*.input"), *faults.glob("timeout-*"), *faults.glob("oom-*")])
    report = {
        "door": name,
        "seconds": round(wall_seconds, 1),
        "executions": num_executions,
        "faults": num_faults,
        "ended": num_ended_processes,
    }
    _append_to_summary(out, {**report, "cpu_seconds": round(cpu_seconds, 1)})
    print(
        f"{name}: {wall_seconds / 60:.1f} minutes, {num_executions:,} inputs, {num_faults} kinds of faults", flush=True
    )
    return report


def _append_to_summary(out: Path, report: dict[str, object]) -> None:
    """Append the report on a target to summary.json."""
    path = out / "summary.json"
    reports = json.loads(path.read_text()) if path.is_file() else []
    path.write_text(json.dumps([*reports, {**report, "at": time.strftime("%Y-%m-%d %H:%M:%S")}], indent=1) + "\n")


def _fuzz_in_child(name: str, seconds: float, out: Path) -> None:
    """Fuzz one target in this process; libFuzzer ends it."""
    import atheris
    from tools.fuzz_targets import run_target

    faults, scratch = out / name / "faults", out.resolve() / "scratch"
    log = os.open(out / name / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for descriptor in (1, 2):
        os.dup2(log, descriptor)

    def try_input(data: bytes) -> None:
        start_time = time.process_time()
        try:
            run_target(name, data, scratch)
            assert time.process_time() - start_time < MAX_CPU_SECONDS_PER_INPUT, "the input takes too long"
        except Exception as error:  # noqa: BLE001  every exception is a fault
            _store_fault(faults, data, error, name)

    options = [
        f"-max_total_time={max(1, int(seconds))}",
        f"-timeout={MAX_WALL_SECONDS_PER_INPUT}",
        f"-rss_limit_mb={MAX_MEMORY_MB}",
        f"-max_len={MAX_INPUT_BYTES}",
        f"-dict={out / name / 'words'}",
        f"-artifact_prefix={faults}/",
        "-print_final_stats=1",
    ]
    atheris.Setup([sys.argv[0], *options, str(out / name / "corpus")], try_input)
    atheris.Fuzz()


def _store_fault(faults: Path, data: bytes, error: BaseException, name: str) -> None:
    """Store the smallest input of each kind of failure, by exception and location in the package."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "headtohead" in frame.filename]
    location = f"{Path(frames[-1].filename).name}-{frames[-1].lineno}" if frames else "outside"
    path = faults / f"{type(error).__name__}-{location}.input"
    if path.is_file() and path.stat().st_size <= len(data):
        return
    path.write_bytes(data)
    command = f"python tools/fuzz.py {name} --again {path}\n\n"
    path.with_suffix(".txt").write_text(command + "".join(traceback.format_exception(error)))


def _reproduce(name: str, path: Path) -> int:
    """Run one target on a stored input and print the result."""
    from tools.fuzz_targets import run_target

    with tempfile.TemporaryDirectory() as scratch:
        print(run_target(name, path.read_bytes(), Path(scratch)) or "accepted without an error")
    return 0


if __name__ == "__main__":
    sys.exit(main())
