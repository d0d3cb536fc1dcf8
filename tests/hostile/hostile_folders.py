"""Forty kinds of hostile experiment folders, derived from a valid one.

Each kind is a function that modifies a copy of a valid folder with a seeded generator, so that folders of one kind
differ. An attacker can recompute checksums, so most kinds do.
"""

import json
import os
import pickle
import random
import shutil
import socket
import stat
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headtohead.atomic_io import compute_sha256
from headtohead.json_files import CHECKSUM_KEY, read_json, write_json

SCRIPT = "<script>fetch('http://127.0.0.1:9/')</script><img src=x onerror=alert(1)>"
REFRESH = '<meta http-equiv="refresh" content="0;url=http://127.0.0.1:9/">'
ESCAPES = "\x1b]0;owned\x07\x1b[2J\x1b[31m\x9b5n\r\x08"
BIDI = "\u202etxt.exe\u2066\u200f"
FORMULAS = ("=cmd|'/C calc'!A0", "@SUM(1+1)*cmd", "\\input{/etc/passwd}", "\\immediate\\write18{touch x}", "$$|`x`|")
EXPERIMENT_FILES = ("experiment.json", "corpus.json", "findings.json")
RUN_JSON_FILES = ("audits.json", "config.json", "lengths.json", "maps.json", "probes.json", "start.json", "trial.json")
ARRAY_FILES = ("scores.safetensors", "maps.safetensors", "model.safetensors")


@dataclass(frozen=True)
class Attack:
    """The folder to modify, its random generator, and paths outside of the folder."""

    folder: Path
    draw: random.Random
    outside: Path
    """folder whose files must not be changed"""
    canary: Path
    """file that exists only if code of the folder was executed"""

    @property
    def run(self) -> Path:
        """Return a run of the folder, the same for each call."""
        return self.folder / ("baseline", "alibi")[self.draw_index % 2] / f"seed-{self.draw_index // 2 % 2}"

    @property
    def draw_index(self) -> int:
        return int(self.folder.name.rpartition("-")[2])

    def pick_file(self) -> Path:
        """Return a file that verification reads."""
        names = (*RUN_JSON_FILES, *ARRAY_FILES, "result.json", "metrics.jsonl", "tokenizer.json")
        return self.draw.choice([*(self.folder / name for name in EXPERIMENT_FILES), *(self.run / n for n in names)])

    def pick_json_file(self) -> Path:
        files = [*(self.folder / name for name in EXPERIMENT_FILES), *(self.run / name for name in RUN_JSON_FILES)]
        return self.draw.choice([*files, self.run / "result.json"])

    def write(self, path: Path, content: bytes) -> None:
        """Replace a file and its checksum in result.json."""
        path.write_bytes(content)
        self.vouch(path)

    def edit(self, path: Path, change: Callable[[dict[str, Any]], None]) -> None:
        """Change a JSON file, its own checksum, and the one in result.json."""
        content = read_json(path)
        has_checksum = content.pop(CHECKSUM_KEY, None) is not None
        change(content)
        write_json(path, content, with_checksum=has_checksum)
        self.vouch(path)

    def vouch(self, path: Path) -> None:
        result_path = self.run / "result.json"
        if path.parent != self.run or path == result_path:
            return
        result = read_json(result_path)
        result.pop(CHECKSUM_KEY, None)
        result["sha256"][path.name] = compute_sha256(path)
        write_json(result_path, result, with_checksum=True)

    @property
    def code(self) -> str:
        """Python code that creates the canary."""
        return f"open({str(self.canary)!r}, 'w').close()\nclass Net: pass\n"


KINDS: dict[str, Callable[[Attack], None]] = {}


def kind(function: Callable[[Attack], None]) -> Callable[[Attack], None]:
    KINDS[function.__name__] = function
    return function


# ---- files that are no files


@kind
def linked_file(attack: Attack) -> None:
    path = attack.pick_file()
    target = attack.outside / f"{attack.folder.name}-{path.name}"
    path.rename(target)
    path.symlink_to(target)


@kind
def linked_folder(attack: Attack) -> None:
    target = attack.outside / attack.folder.name
    attack.run.rename(target)
    attack.run.symlink_to(target)


@kind
def cyclic_link(attack: Attack) -> None:
    place = attack.draw.choice([attack.folder, attack.run, attack.run.parent])
    (place / "loop").symlink_to(attack.draw.choice([attack.folder, place]))


@kind
def dangling_link(attack: Attack) -> None:
    place = attack.draw.choice([attack.folder / "report.md", attack.run / "samples.json", attack.run / "failure.json"])
    place.symlink_to(attack.outside / "created-through-a-link")


@kind
def hard_link(attack: Attack) -> None:
    path = attack.draw.choice([attack.folder / "journal.jsonl", attack.run / "metrics.jsonl", attack.pick_file()])
    os.link(path, attack.outside / f"{attack.folder.name}-{path.name}")


@kind
def pipe(attack: Attack) -> None:
    path = attack.pick_file()
    path.unlink()
    os.mkfifo(path)


@kind
def device_or_socket(attack: Attack) -> None:
    path = attack.pick_file()
    path.unlink()
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 5))  # /dev/zero
    except PermissionError:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(os.path.relpath(path))


@kind
def folder_as_file(attack: Attack) -> None:
    path = attack.pick_file()
    path.unlink()
    path.mkdir()


@kind
def deep_folders(attack: Attack) -> None:
    depth = attack.draw.randint(9, 60)
    (attack.draw.choice([attack.folder, attack.run]) / "/".join("d" * depth)).mkdir(parents=True)


@kind
def unreadable_file(attack: Attack) -> None:
    """Root can read every file, so the file is also truncated."""
    path = attack.pick_file()
    os.truncate(path, path.stat().st_size // 2)
    path.chmod(0)


# ---- sizes


@kind
def sparse_file(attack: Attack) -> None:
    os.truncate(attack.pick_file(), attack.draw.choice([10**9, 40 * 10**9, 10**12]))


@kind
def zeros_below_the_limit(attack: Attack) -> None:
    path = attack.pick_file()
    os.truncate(path, attack.draw.randint(40 << 20, 63 << 20))
    if path.name != "result.json":
        attack.vouch(path)


@kind
def deeply_nested_json(attack: Attack) -> None:
    depth, opening = attack.draw.randint(100, 10**6), attack.draw.choice(["[", '{"a":'])
    attack.write(attack.pick_json_file(), (opening * depth).encode())


@kind
def many_values(attack: Attack) -> None:
    attack.write(attack.pick_json_file(), b"[" + b"[]," * attack.draw.randint(10**6, 10**7) + b"[]]")


@kind
def long_line(attack: Attack) -> None:
    path = attack.draw.choice([attack.run / "metrics.jsonl", attack.folder / "journal.jsonl"])
    attack.write(path, path.read_bytes() + b'{"a": "' + b"x" * attack.draw.randint(10**6, 3 * 10**7) + b'"}\n')


@kind
def many_variants(attack: Attack) -> None:
    def change(content: dict[str, Any]) -> None:
        variants = content["experiment"]["variants"]
        variants |= {f"v{i}": variants["alibi"] for i in range(attack.draw.choice([2_000, 20_000, 100_000]))}

    attack.edit(attack.folder / "experiment.json", change)


@kind
def long_names(attack: Attack) -> None:
    name = attack.draw.choice(["x", "ä", "\U0001f600"]) * attack.draw.randint(5_000, 50_000)

    def change(content: dict[str, Any]) -> None:
        content["experiment"]["variants"][name] = {"model": {"position": "alibi"}}

    attack.edit(attack.folder / "experiment.json", change)


@kind
def changing_file(attack: Attack) -> None:
    """A file that is truncated and extended while it is read; see `HostileRuns.watch`."""
    os.truncate(attack.folder / "baseline" / "seed-0" / "metrics.jsonl", 7)


# ---- values


def put_somewhere(attack: Attack, content: Any, value: Any) -> Any:
    """Replace a random value inside JSON content and return the content."""
    containers, stack = [], [content]
    while stack:
        container = stack.pop()
        items = container.items() if isinstance(container, dict) else enumerate(container)
        for key, item in items:
            if key not in ("schema_version", CHECKSUM_KEY):
                containers.append((container, key))
            if isinstance(item, dict | list):
                stack.append(item)
    container, key = attack.draw.choice(containers)
    container[key] = value
    return content


@kind
def huge_integers(attack: Attack) -> None:
    path = attack.pick_json_file()
    content = put_somewhere(attack, json.loads(path.read_bytes()), "HUGE")
    digits = "-" * attack.draw.randint(0, 1) + "9" * attack.draw.choice([20, 400, 5_000, 10**6])
    attack.write(path, json.dumps(content).replace('"HUGE"', digits, 1).encode())


@kind
def not_a_number(attack: Attack) -> None:
    path = attack.pick_json_file()
    value = attack.draw.choice([float("nan"), float("inf"), -float("inf"), "1e999"])
    content = json.dumps(put_somewhere(attack, json.loads(path.read_bytes()), value))
    attack.write(path, content.replace('"1e999"', "1e999").encode())


@kind
def duplicate_keys(attack: Attack) -> None:
    """Python uses the last value of a repeated key, other readers the first. The checksum matches the last."""
    path = attack.draw.choice([attack.folder / "experiment.json", attack.folder / "findings.json"])
    text = path.read_text()
    key = attack.draw.choice(["schema_version", "versions", "command"])
    path.write_text(text.replace("{", f'{{"{key}": {json.dumps(read_json(path)[key])},', 1))


@kind
def invalid_utf8(attack: Attack) -> None:
    path = attack.pick_json_file()
    raw = path.read_bytes()
    position = attack.draw.randrange(len(raw))
    attack.write(path, raw[:position] + attack.draw.choice([b"\xff", b"\xc0\xaf", b"\xed\xa0\x80"]) + raw[position:])


@kind
def lone_surrogates(attack: Attack) -> None:
    path = attack.pick_json_file()
    content = put_somewhere(attack, json.loads(path.read_bytes()), "SURROGATE")
    attack.write(path, json.dumps(content).replace("SURROGATE", r"\ud800\udfff\udc00").encode())


@kind
def wrong_types(attack: Attack) -> None:
    value = attack.draw.choice([None, [], {}, "text", True, -1, 1e300, [[{}]]])
    attack.edit(attack.pick_json_file(), lambda content: put_somewhere(attack, content, value))


@kind
def other_schema(attack: Attack) -> None:
    version = attack.draw.choice([0, 1, 3, 99, -1, "2", 2.5])
    attack.edit(attack.pick_json_file(), lambda content: content.update(schema_version=version))


# ---- text


def add_variant(attack: Attack, name: str) -> None:
    attack.edit(attack.folder / "experiment.json", lambda content: content["experiment"]["variants"].update({name: {}}))


def set_text(attack: Attack, text: str) -> None:
    """Insert a text in a displayed field: question, variant, verdict, warning or error message."""
    place = attack.draw.choice(["question", "variant", "summary", "warning", "failure"])
    if place == "question":
        attack.edit(attack.folder / "experiment.json", lambda content: content["experiment"].update(question=text))
    elif place == "variant":
        add_variant(attack, text)
    elif place == "failure":
        (attack.run / "result.json").unlink()
        write_json(attack.run / "failure.json", {"schema_version": 2, "message": text, "kind": "DivergedError"})
    else:

        def change(content: dict[str, Any]) -> None:
            content["verdicts"][0][attack.draw.choice(["summary", "variant"])] = text
            content["warnings"] = [{"kind": text, "message": text, "advice": text}]

        attack.edit(attack.folder / "findings.json", change)


@kind
def escape_sequences(attack: Attack) -> None:
    set_text(attack, f"a{ESCAPES}b")


@kind
def script_in_text(attack: Attack) -> None:
    set_text(attack, attack.draw.choice([SCRIPT, f"</title>{REFRESH}", "{{ 7*7 }}{% raw %}", "javascript:alert(1)"]))


@kind
def formulas_in_text(attack: Attack) -> None:
    set_text(attack, attack.draw.choice(FORMULAS))


@kind
def bidirectional_text(attack: Attack) -> None:
    set_text(attack, f"helped{BIDI}")


@kind
def foreign_report(attack: Attack) -> None:
    content = attack.draw.choice([SCRIPT, REFRESH, f"<base href=//evil>{SCRIPT}", "<svg onload=alert(1)>" * 10_000])
    (attack.folder / "report.html").write_text(f"<!doctype html><title>Report</title>{content}")


# ---- names


@kind
def parent_folders_in_names(attack: Attack) -> None:
    name = attack.draw.choice(["../../outside/x", "..", "/etc/passwd", "a/../../b", "baseline/../../x", "con\x00"])
    if attack.draw.random() < 0.5:
        add_variant(attack, name)
    else:
        attack.edit(attack.run / "result.json", lambda content: content["sha256"].update({name: "0" * 64}))


@kind
def odd_seed_folders(attack: Attack) -> None:
    name = attack.draw.choice(["seed-٣", "seed--1", "seed-007", "seed-1e3", "seed-99999999999999999999", "seed-0\n"])
    attack.run.rename(attack.run.parent / name)


# ---- results


@kind
def flipped_bit(attack: Attack) -> None:
    path = attack.pick_file()
    raw = bytearray(path.read_bytes())
    raw[attack.draw.randrange(len(raw))] ^= 1 << attack.draw.randrange(7)
    path.write_bytes(raw)


@kind
def truncated_file(attack: Attack) -> None:
    path = attack.pick_file()
    os.truncate(path, attack.draw.randrange(path.stat().st_size))


@kind
def forged_journal(attack: Attack) -> None:
    path = attack.folder / "journal.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    index = attack.draw.randrange(len(lines))
    change = attack.draw.choice(["remove", "repeat", "swap", "edit", "empty"])
    if change == "remove":
        lines = [line for number, line in enumerate(lines[:-1]) if number != min(index, len(lines) - 2)]
    elif change == "repeat":
        lines.insert(index, lines[index])
    elif change == "swap":
        lines[0], lines[-1] = lines[-1], lines[0]
    elif change == "edit":
        lines[index] = lines[index].replace(b'"', b'"x', 1)
    else:
        lines = []
    path.write_bytes(b"".join(lines))


@kind
def copied_seed(attack: Attack) -> None:
    other = attack.run.parent / f"seed-{1 - int(attack.run.name[-1])}"
    shutil.rmtree(other)
    shutil.copytree(attack.run, other)
    for name in ("result.json", "trial.json"):
        content = read_json(other / name)
        content.pop(CHECKSUM_KEY, None)
        (content if name == "result.json" else content["trial"])["seed"] = int(other.name[-1])
        write_json(other / name, content, with_checksum=True)


@kind
def foreign_run(attack: Attack) -> None:
    variant = "alibi" if attack.run.parent.name == "baseline" else "baseline"
    source = attack.folder / variant / attack.run.name
    shutil.rmtree(attack.run)
    shutil.copytree(source, attack.run)


@kind
def swapped_baseline(attack: Attack) -> None:
    suffix = attack.draw.choice(["", f"/{attack.run.name}"])
    baseline, variant = (attack.folder / f"{name}{suffix}" for name in ("baseline", "alibi"))
    baseline.rename(attack.folder / "swap")
    variant.rename(baseline)
    (attack.folder / "swap").rename(variant)


@kind
def forged_scores(attack: Attack) -> None:
    """Better scores in result.json or in the arrays, with all checksums of the run updated."""
    if attack.draw.random() < 0.5:
        scores = {"loss": 0.1, "perplexity": 1.1}
        attack.edit(attack.run / "result.json", lambda content: content["scores"]["test"].update(scores))
        return
    path = attack.run / "scores.safetensors"
    raw = bytearray(path.read_bytes())
    raw[-8:] = struct.pack("<d", 1e-3)
    attack.write(path, bytes(raw))


@kind
def forged_training_record(attack: Attack) -> None:
    """A training record with the pid of another process, and a run that appears to be in progress."""
    record = {"pid": attack.draw.choice([1, os.getpid()]), "started": 0, "signature": "0" * 64}
    (attack.folder.parent / f".{attack.folder.name}.training.json").write_text(json.dumps(record))
    (attack.folder.parent / f".{attack.folder.name}.training.log").symlink_to(attack.outside / "precious")
    (attack.run / "result.json").unlink()


# ---- arrays


def write_header(path: Path, header: bytes, data: bytes = b"", length: int | None = None) -> bytes:
    return struct.pack("<Q", len(header) if length is None else length) + header + data


@kind
def huge_tensor_header(attack: Attack) -> None:
    path = attack.run / attack.draw.choice(ARRAY_FILES)
    length = attack.draw.choice([2**63, 2**40, 10**8, 99_999_999])
    attack.write(path, write_header(path, b"{}", b"x" * 100, length))


@kind
def overlapping_tensors(attack: Attack) -> None:
    path = attack.run / attack.draw.choice(ARRAY_FILES)
    count = attack.draw.choice([2, 1000, 100_000])
    entry = {"dtype": "F32", "shape": [16], "data_offsets": [0, 64]}
    attack.write(path, write_header(path, json.dumps({f"t{i}": entry for i in range(count)}).encode(), bytes(64)))


@kind
def wrong_tensor_types(attack: Attack) -> None:
    path = attack.run / attack.draw.choice(ARRAY_FILES)
    raw = path.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + length])
    name = attack.draw.choice([name for name in header if name != "__metadata__"])
    wrong_entries = [{"dtype": dtype} for dtype in ("F8_E5M2", "I8", "O")]
    wrong_entries += [{"shape": [-1]}, {"shape": [2**62, 4]}, {"data_offsets": [-8, 0]}]
    header[name] |= attack.draw.choice(wrong_entries)
    attack.write(path, write_header(path, json.dumps(header).encode(), raw[8 + length :]))


# ---- code


class Payload:
    """An object whose unpickling runs code."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (str(self.canary), "w")


@kind
def pickled_weights(attack: Attack) -> None:
    path = attack.run / attack.draw.choice([*ARRAY_FILES, "tokenizer.json"])
    attack.write(path, pickle.dumps(Payload(attack.canary)))


@kind
def code_in_the_experiment(attack: Attack) -> None:
    file = attack.folder / "evil.py"
    file.write_text(attack.code)
    name = attack.draw.choice([str(file), "evil.py", f"{attack.folder.name}/evil.py"])
    place = attack.draw.choice(["plugins", "module", "variant"])

    def change(content: dict[str, Any]) -> None:
        experiment = content["experiment"]
        if place == "plugins":
            experiment["plugins"] = [name]
        elif place == "module":
            experiment["model"] = {"module": f"{name}:Net", "context": 8}
        else:
            experiment["variants"]["evil"] = {"model": {"module": f"{name}:Net"}}

    attack.edit(attack.folder / "experiment.json", change)


@kind
def code_in_a_run(attack: Attack) -> None:
    (attack.run / "own").mkdir()
    (attack.run / "own" / "evil.py").write_text(attack.code)
    file = attack.draw.choice(["config.json", "trial.json"])
    attack.edit(attack.run / file, lambda content: content["trial"].update(plugins=["own/evil.py"]))
    if attack.draw.random() < 0.5:
        for name in ("conftest.py", "sitecustomize.py", "torch.py"):
            (attack.folder / name).write_text(attack.code)


@kind
def slow_tokenizer(attack: Attack) -> None:
    pattern = attack.draw.choice([r"a*a*\d", r"(\w+\s*)+\d$"])
    normalizer = {"type": "Replace", "pattern": {"Regex": pattern}, "content": "x"}
    attack.edit(attack.run / "tokenizer.json", lambda content: content.update(normalizer=normalizer))


# ---- folders


def build_folders(good: Path, runs: Path, outside: Path, canary: Path, *, per_kind: int, num_good: int) -> list[str]:
    """Copy a valid folder to `runs` as good-0, good-1, ... and as hostile folders of each kind; return the hostile
    names.
    """
    outside.mkdir()
    (outside / "precious").write_text("precious")
    for index in range(num_good):
        shutil.copytree(good, runs / f"good-{index}")
    names = []
    for kind_name, change in KINDS.items():
        for index in range(per_kind):
            name = f"{kind_name}-{index}"
            folder = Path(shutil.copytree(good, runs / name))
            change(Attack(folder, random.Random(f"{kind_name} {index}"), outside, canary))
            names.append(name)
    return names
