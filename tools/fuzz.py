"""Fuzzing, guided by coverage (atheris, libFuzzer): python tools/fuzz.py [DOOR ...] --minutes N

Every target of tools/fuzz_targets gets mutations of valid inputs, in a separate process with a limit of memory and of
time for each input; only the package is instrumented. What raises anything but the package's own errors, reads
or writes outside its scratch folder, takes too long or too much memory is kept in OUT/DOOR/faults, one input a kind,
with the command that reproduces it. OUT/summary.json lists time and number of inputs per target. Ends with 1
if anything was found.
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

for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
sys.path.insert(0, str(Path(__file__).parents[1]))

SECONDS_AN_INPUT = 10
"""of computing; on a machine with other work that may be minutes by the clock, after which the process is ended"""
CLOCK = 30 * SECONDS_AN_INPUT
MEMORY_MB = 3000
"""of the whole process, torch and the sound inputs among it"""
LONGEST_INPUT = 1 << 16


def main() -> int:
    """Run the requested fuzz targets one after the other."""
    arguments = _arguments()
    if arguments.again:
        return _again(arguments.targets[0], arguments.again)
    import atheris

    with atheris.instrument_imports(include=["headtohead"]):
        from tools.fuzz_targets import FUZZ_TARGETS

        unknown = [name for name in arguments.targets if name not in FUZZ_TARGETS]
        if unknown:
            print(f"no fuzz target named {unknown[0]!r}; there are: {', '.join(FUZZ_TARGETS)}", file=sys.stderr)
            return 2
        names = arguments.targets or list(FUZZ_TARGETS)
        seeds = _prepare(names, arguments.out)
    os.nice(arguments.nice)
    reports = [_fuzz(name, seeds[name], 60 * arguments.minutes / len(names), arguments.out) for name in names]
    minutes, executions = sum(row["seconds"] for row in reports) / 60, sum(row["executions"] for row in reports)
    faults = sum(row["faults"] for row in reports)
    print(f"{len(names)} fuzz targets, {minutes:.1f} minutes, {executions:,} inputs, {faults} kinds of faults")
    return 1 if faults else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help="fuzz targets (default: all)")
    parser.add_argument("--minutes", type=float, default=30, help="for all doors together")
    parser.add_argument("--nice", type=int, default=0, help="be this polite to other processes once all is prepared")
    parser.add_argument("--out", type=Path, default=Path(".fuzz"), help="corpora, faults and summary.json")
    parser.add_argument("--again", type=Path, metavar="INPUT", help="put this input before the door once")
    return parser.parse_args()


def _prepare(names: Sequence[str], out: Path) -> dict[str, Sequence[bytes]]:
    """Sound inputs for each door. What a door needs is imported, and so instrumented, by going through it once with
    each of them; the processes that fuzz are copies of this one."""
    from tools.fuzz_targets import FUZZ_TARGETS, run_target

    scratch = out.resolve() / "scratch"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    seeds = {name: FUZZ_TARGETS[name].seeds(scratch) for name in names}
    for name, sound in seeds.items():
        for seed in sound:
            with contextlib.suppress(Exception):
                run_target(name, seed, scratch)
    shutil.rmtree(out / "sound", ignore_errors=True)
    shutil.copytree(scratch, out / "sound")
    return seeds


def _restore(out: Path) -> None:
    shutil.rmtree(out / "scratch", ignore_errors=True)
    shutil.copytree(out / "sound", out / "scratch")


def _fuzz(name: str, seeds: Sequence[bytes], seconds: float, out: Path) -> dict[str, Any]:
    """One door until the time is over. A process that an input ended is followed by another: the input is kept."""
    corpus, faults, log = out / name / "corpus", out / name / "faults", out / name / "log"
    for folder in (corpus, faults):
        folder.mkdir(parents=True, exist_ok=True)
    for seed in seeds:
        (corpus / hashlib.sha256(seed).hexdigest()[:16]).write_bytes(seed)
    words = sorted({word for seed in seeds for word in re.findall(rb"[A-Za-z_][\w.-]{2,24}", seed[:20_000])})
    (out / name / "words").write_text("".join(f'"{word.decode()}"\n' for word in words[:2000]))
    spent, executions, ended, computed = 0.0, 0, 0, 0.0
    while seconds - spent >= 1 and ended < 50:
        began = time.time()
        log.unlink(missing_ok=True)
        child = os.fork()
        if not child:
            _child(name, seconds - spent, out)
        _, status, used = os.wait4(child, 0)
        spent += time.time() - began
        computed += used.ru_utime + used.ru_stime
        ran = re.findall(r"stat::number_of_executed_units: (\d+)", log.read_text(errors="replace"))
        executions += int(ran[-1]) if ran else 0
        if status:
            ended += 1
            _restore(out)  # it may have been left half way
    kinds = len([*faults.glob("*.input"), *faults.glob("timeout-*"), *faults.glob("oom-*")])
    row = {"door": name, "seconds": round(spent, 1), "executions": executions, "faults": kinds, "ended": ended}
    _summarise(out, {**row, "cpu_seconds": round(computed, 1)})
    print(f"{name}: {spent / 60:.1f} minutes, {executions:,} inputs, {kinds} kinds of faults", flush=True)
    return row


def _summarise(out: Path, row: dict[str, object]) -> None:
    path = out / "summary.json"
    rows = json.loads(path.read_text()) if path.is_file() else []
    path.write_text(json.dumps([*rows, {**row, "at": time.strftime("%Y-%m-%d %H:%M:%S")}], indent=1) + "\n")


def _child(name: str, seconds: float, out: Path) -> None:
    """Fuzz one door in this process; libFuzzer ends it."""
    import atheris
    from tools.fuzz_targets import run_target

    faults, scratch = out / name / "faults", out.resolve() / "scratch"
    log = os.open(out / name / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for descriptor in (1, 2):
        os.dup2(log, descriptor)

    def try_one(data: bytes) -> None:
        began = time.process_time()
        try:
            run_target(name, data, scratch)
            assert time.process_time() - began < SECONDS_AN_INPUT, "it took too long"
        except Exception as error:  # noqa: BLE001  anything at all is what is looked for
            _keep(faults, data, error, name)

    options = [
        f"-max_total_time={max(1, int(seconds))}",
        f"-timeout={CLOCK}",
        f"-rss_limit_mb={MEMORY_MB}",
        f"-max_len={LONGEST_INPUT}",
        f"-dict={out / name / 'words'}",
        f"-artifact_prefix={faults}/",
        "-print_final_stats=1",
    ]
    atheris.Setup([sys.argv[0], *options, str(out / name / "corpus")], try_one)
    atheris.Fuzz()


def _keep(faults: Path, data: bytes, error: BaseException, name: str) -> None:
    """The smallest input of each kind, by what was raised and where in the package."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "headtohead" in frame.filename]
    where = f"{Path(frames[-1].filename).name}-{frames[-1].lineno}" if frames else "outside"
    path = faults / f"{type(error).__name__}-{where}.input"
    if path.is_file() and path.stat().st_size <= len(data):
        return
    path.write_bytes(data)
    how = f"python tools/fuzz.py {name} --again {path}\n\n"
    path.with_suffix(".txt").write_text(how + "".join(traceback.format_exception(error)))


def _again(name: str, path: Path) -> int:
    from tools.fuzz_targets import run_target

    with tempfile.TemporaryDirectory() as scratch:
        print(run_target(name, path.read_bytes(), Path(scratch)) or "answered without an error")
    return 0


if __name__ == "__main__":
    sys.exit(main())
