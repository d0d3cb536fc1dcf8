"""Bytes that are flipped or missing, in every kind of file: whoever reads it must name it, and must not use it."""

from __future__ import annotations

import contextlib
import io
import random
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from headtohead.atomic_io import read_json
from headtohead.config.search import WINNER_VARIANT
from headtohead.data.token_cache import TokenizedCorpus, load_tokenized_corpus
from headtohead.distillation import teacher_cache
from headtohead.errors import HeadToHeadError, RunFolderError
from headtohead.experiment import model_io, schemas
from headtohead.experiment.journal import JOURNAL_FILE, Journal
from headtohead.experiment.run_folder import open_runs
from headtohead.findings import compute
from headtohead.report import write
from headtohead.runner.verify import find_differences, verify_experiment

from .ledger import compare, numbers
from .seen import How, Seen
from .still import SHORT, undisturbed
from .trials import cache_of, copied, outcome, stop_at, trial_of
from .world import World, last_words

OF_NO_ACCOUNT = ("workers.log",)
"""what workers said to stderr: nobody reads it but people"""
NAMED, HARMLESS = "refused by name", "not used, or made anew"
Check = Callable[[Path, Path], str]
"""given a damaged copy and the damaged file in it: how that was taken (one of these two, or what is wrong)"""


def flip(path: Path, draw: random.Random) -> None:
    """One bit of one byte."""
    content = bytearray(path.read_bytes())
    content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    path.write_bytes(bytes(content))


def cut(path: Path, draw: random.Random) -> None:
    """The end is missing."""
    content = path.read_bytes()
    path.write_bytes(content[: draw.randrange(len(content))])


DAMAGES = {"flipped": flip, "cut": cut}


def flips(how: How) -> Iterator[Seen]:
    """Every kind of file, wherever an experiment keeps one."""
    for what, work in (
        ("files of a finished experiment", _finished),
        *(() if how.short else (("files of a finished search", partial(_finished, kind="searched")),)),
        ("files of a run that is not finished", _unfinished),
        ("journal of a search", _journal),
        ("tokens in the cache", _tokens),
        ("a teacher's work in the cache", _taught),
    ):
        how.say(f"  {what}")
        yield work(how, what)


def _each(
    how: How, what: str, base: Path, kinds: dict[str, list[Path]], check: Check, seen: str, scratch: Path
) -> Seen:
    """Damage each kind of file in a copy of its own, and see what becomes of it."""
    draw, wrong, taken = random.Random(how.seed), [], Counter[str]()
    for at, (kind, paths) in enumerate(sorted(kinds.items())):
        damages = list(DAMAGES) if not how.short else [list(DAMAGES)[at % len(DAMAGES)]]
        for damage in damages:
            path = draw.choice(paths)
            copy = copied(base, scratch)
            damaged = copy / path.relative_to(base)
            DAMAGES[damage](damaged, draw)
            how_taken = HARMLESS if _means_the_same(path, damaged) else check(copy, damaged)
            taken[how_taken] += 1
            if how_taken not in (NAMED, HARMLESS):
                wrong.append(f"{kind}, {damage}: {how_taken}")
    names = ", ".join(sorted({path.name for paths in kinds.values() for path in paths[:1]}))
    said = f"{seen}: {taken[NAMED]} {NAMED}, {taken[HARMLESS]} {HARMLESS} ({names})"
    return Seen(f"bytes flipped or cut off: {what}", said, taken.total(), wrong=tuple(wrong))


def _means_the_same(path: Path, damaged: Path) -> bool:
    """An `e` of 1e-05 that became an `E` is no damage."""
    if path.suffix != ".json":
        return False
    with contextlib.suppress(RunFolderError):
        return bool(read_json(path) == read_json(damaged))
    return False


def kinds_in(folder: Path, skip: Sequence[str] = ()) -> dict[str, list[Path]]:
    """The files of a folder; those that differ only in variant, seed, step or split are of one kind."""
    found: dict[str, list[Path]] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.stat().st_size and not path.name.startswith(".") and path.name not in skip:
            place = str(path.relative_to(folder))
            found.setdefault(re.sub(r"(\w+/)?seed-\d+|\d{3,}|split\d|[0-9a-f]{20,}", "N", place), []).append(path)
    return found


# -- a finished experiment


def _finished(how: How, what: str, kind: str = "plain") -> Seen:
    still = undisturbed(how, kind)
    wanted = compute.compute_findings(open_runs(still.folder))

    def check(copy: Path, path: Path) -> str:
        if not _is_named(copy, path):
            return "`h2h verify` did not name it"
        try:
            made = compute.compute_findings(open_runs(copy))
        except HeadToHeadError:
            made = wanted  # refused: nothing was used
        if different := list(find_differences(made.to_json(), wanted.to_json())):
            return f"was used without a word ({different[0]})"
        return _loaded(path) if path.name == "model.safetensors" else NAMED

    skip = (*OF_NO_ACCOUNT, *(("report.html",) if how.short else ()))
    kinds = kinds_in(still.folder, skip)
    return _each(how, what, still.folder, kinds, check, "looked at with `h2h verify`", how.scratch / "damaged")


def _is_named(copy: Path, path: Path) -> bool:
    remake = write if path.name == "report.html" else None
    try:
        said = [f"{one.place} {one.found}" for one in verify_experiment(copy, render_report=remake) if not one.passed]
    except HeadToHeadError as error:
        said = [str(error)]
    return any(str(path.relative_to(copy)) in text for text in said)


def _loaded(path: Path) -> str:
    try:
        model_io.load(path.parent)
    except HeadToHeadError as error:
        return _refused(path, str(error))
    return "was loaded without a word"


def _refused(path: Path, said: str) -> str:
    return NAMED if path.name in said else f"was refused, but not named: {said}"


def _gone_on(runs: Path, wanted: dict[str, Any]) -> str:
    wrong = compare(runs, wanted)
    return f"was used without a word ({wrong[0]})" if wrong else HARMLESS


# -- a run that is not finished


def _unfinished(how: How, what: str) -> Seen:
    still = undisturbed(how)
    world = still.world(how.scratch / "unfinished")
    base, trial = world.runs, trial_of(world)
    name = "baseline/seed-0"
    with cache_of(world):
        stop_at(trial, base / name, 3 * world.steps // 5)

        def check(copy: Path, path: Path) -> str:
            said = outcome(trial, copy / name)
            return _refused(path, said) if said else _gone_on(copy, {name: still.numbers[name]})

        seen = "gone on with"
        return _each(how, what, base, kinds_in(base), check, seen, how.scratch / "unfinished-damaged")


# -- a search


def _journal(how: How, what: str) -> Seen:
    base = how.scratch / "journal"
    if how.short:
        _write_journal(base)
    else:
        base.mkdir(parents=True, exist_ok=True)
        shutil.copy(undisturbed(how, "searched").folder / JOURNAL_FILE, base)
    wanted = Journal(base).read()

    def check(copy: Path, path: Path) -> str:
        try:
            there = Journal(copy).read()
        except HeadToHeadError as error:
            return _refused(path, str(error))
        # Lines that are missing at the end are decided again, and alike.
        return HARMLESS if there == wanted[: len(there)] else "was used without a word"

    kinds = {f"journal {at}": [base / JOURNAL_FILE] for at in range(20)}
    seen = _each(how, what, base, kinds, check, "read", how.scratch / "journal-damaged")
    return seen if how.short else _with(seen, _cut_journal(how))


def _write_journal(folder: Path) -> None:
    journal = Journal(folder)
    journal.append(schemas.SearchStartEvent(identity="identity"))
    for cell in range(4):
        journal.append(schemas.PointEvent(point=cell, settings={"training.optimizer.lr": 0.01 / (cell + 1)}))
        journal.append(schemas.TrialEvent(point=cell, seed=1000, seconds=1.5 * cell))
    journal.append(schemas.WinnerEvent(point=2, budget=None))


def _cut_journal(how: How) -> list[str]:
    """A search whose journal has lost its end, before the winner was compared, gone on with."""
    still = undisturbed(how, "searched")
    world = still.world(still.folder.parent)  # the very same files
    runs = copied(still.folder, how.scratch / "cut-journal")
    path = runs / JOURNAL_FILE
    before_winner, _, _ = path.read_bytes().partition(b'{"event": "winner"')
    path.write_bytes(before_winner[: len(before_winner) // 2])
    for variant in ("baseline", WINNER_VARIANT):
        shutil.rmtree(runs / variant)
    done = world.finish(out=runs)
    return compare(runs, still.numbers) + ([f"did not go on: {last_words(done.said)}"] if done.code else [])


def _with(seen: Seen, wrong: list[str]) -> Seen:
    said = seen.seen if wrong else f"{seen.seen}; 1 search went on with half of it to the same numbers"
    return Seen(seen.what, said, seen.times + 1, seen.kills, seen.lost, (*seen.wrong, *wrong))


# -- what is kept between experiments


def _tokens(how: How, what: str) -> Seen:
    world = undisturbed(how).world(how.scratch / "tokens")
    data = trial_of(world).data
    with cache_of(world):
        wanted = load_tokenized_corpus(data, has_labels=False)

    def check(copy: Path, path: Path) -> str:
        errors = io.StringIO()
        other = World(copy.parent, world.kind)  # whose cache is the copy
        with cache_of(other), contextlib.redirect_stderr(errors):
            there = load_tokenized_corpus(data, has_labels=False)
        if not _alike(there, wanted):
            return "was used without a word"
        return HARMLESS if path.name in errors.getvalue() else "was made anew, but not named"

    seen = "opened"
    scratch = how.scratch / "tokens-damaged" / "cache"
    return _each(how, what, world.cache, kinds_in(world.cache), check, seen, scratch)


def _alike(one: TokenizedCorpus, other: TokenizedCorpus) -> bool:
    same = one.tokenizer.vocab_size == other.tokenizer.vocab_size
    same &= one.corpus.digest == other.corpus.digest and list(one.encoded) == list(other.encoded)
    return same and all(torch.equal(one.encoded[name].tokens, other.encoded[name].tokens) for name in one.encoded)


def _taught(how: How, what: str) -> Seen:
    world = World(how.scratch / "taught-bytes", "taught", *(SHORT if how.short else (200, 50)))
    trial, name = trial_of(world, "both"), "both/seed-0"
    with cache_of(world):
        if said := outcome(trial, world.runs / name):
            return Seen(what, "nothing", wrong=(f"the teacher could not be asked: {said}",))
    wanted = numbers(world.runs)

    def check(copy: Path, path: Path) -> str:
        other = World(copy.parent, world.kind, world.steps, world.checkpoint)
        shutil.rmtree(other.runs, ignore_errors=True)
        with cache_of(other):
            said = outcome(trial, other.runs / name)
        return _refused(path, said) if said else _gone_on(other.runs, wanted)

    kinds = kinds_in(world.cache / "headtohead" / "teachers")
    if how.short:  # of the teacher itself, which is a run like any other, the weights will do
        mine = (
            teacher_cache.METADATA_FILE,
            teacher_cache.TEXTS_FILE,
            teacher_cache.LOGITS_INDEX_FILE,
            teacher_cache.LOGITS_FILE,
        )
        kinds = {kind: paths for kind, paths in kinds.items() if Path(kind).name in (*mine, "model.safetensors")}
    return _each(how, what, world.cache, kinds, check, "a student taught", how.scratch / "taught-damaged" / "cache")
