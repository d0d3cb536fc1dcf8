"""A comparison of strategies under way: what is there is found by its key, what is missing is made and put on the disk.

samples.jsonl and scores.jsonl are described in `decoding`; what comes out of them is decoding.json.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from headtohead.atomic_io import append_line, whole_lines
from headtohead.decoding_comparison.compare import OF_PEOPLE, Sample, Tallies, compare, figure, measures_of, tallies
from headtohead.decoding_comparison.limit_checks import check
from headtohead.decoding_comparison.request import Asked, Writer
from headtohead.errors import RunFolderError
from headtohead.generation import strategy_parsing
from headtohead.generation.detokenizer import continuation_text, prompt_ids
from headtohead.generation.generate import SlidingWarning, generate
from headtohead.generation.likelihood import Likelihood, of_texts, of_tokens, split
from headtohead.generation.strategies import Strategy
from headtohead.generation.strategy_parsing import Point
from headtohead.generation.trace import note, trace
from headtohead.text_metrics import diversity

SCHEMA = 1
SAMPLES, SCORES = "samples.jsonl", "scores.jsonl"
ROWS = 64
"""continuations between two writes to the disk"""

Line = dict[str, Any]
Watch = Callable[[str, int, int], None]
"""what is being done, how much of it is done, how much there is"""


@dataclass
class Work:
    """A comparison under way: what is there is found by its key, what is missing is made and put on the disk."""

    writer: Writer
    judge: Writer | None
    asked: Asked
    folder: Path
    watch: Watch
    lines: dict[str, Line] = field(default_factory=dict)
    scores: dict[str, Line] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.lines = {line["key"]: line for line in whole_lines(self.folder / SAMPLES)}
        self.scores = {line["key"]: line for line in whole_lines(self.folder / SCORES)}

    def found(self) -> dict[str, Any]:
        """Everything that the report shows, as plain JSON values."""
        asked = self.asked
        points = strategy_parsing.points(int(self.writer.tokenizer.vocab_size)) if asked.sweep else []
        wanted = {**dict.fromkeys(asked.strategies, asked.samples), **self._only_swept(points)}
        chosen = {**{point.name: point.strategy for point in points}, **asked.strategies}
        self._write({name: (chosen[name], count) for name, count in wanted.items()})
        of_people = [(at, text) for at, (_, text) in enumerate(self._cut) if text is not None]
        self._judge([*self._texts(chosen, wanted), *of_people])
        by_strategy = {name: self._tallies(name, one, asked.samples) for name, one in asked.strategies.items()}
        people = self._tallied(self._people())
        return {
            "schema": SCHEMA,
            "model": self.writer.as_row(),
            "second": None if self.judge is None else self.judge.as_row(),
            "settings": asked.as_row(),
            "signatures": diversity.signatures(),
            "prompts": [asdict(prompt) for prompt in asked.prompts],
            "baseline": asked.baseline,
            "measures": measures_of(by_strategy),
            **compare(by_strategy, asked.baseline),
            "people": {
                name: found.as_row()
                for name in OF_PEOPLE
                if name in people and (found := figure(name, people[name])) is not None
            },
            "sweep": {"samples": asked.swept, "points": self._swept(points)},
            "traces": self._traces(),
            "laws": self._laws(),
            "notes": self._notes(chosen, wanted),
        }

    # -- writing

    def _write(self, wanted: dict[str, tuple[Strategy, int]]) -> None:
        """Continue every prompt with every strategy, where that is not there yet."""
        missing = {
            name: [at for at in range(len(self.asked.prompts)) if not self._has(one, at, count)]
            for name, (one, count) in wanted.items()
        }
        total = sum(len(found) * wanted[name][1] for name, found in missing.items())
        done = 0
        for name, prompts in missing.items():
            one, count = wanted[name]
            size = ROWS // count if one.way == "draw" and count < ROWS else 1 if one.way == "draw" else ROWS // 2
            for at in range(0, len(prompts), size):
                self.watch(f"writing: {name}", done, total)
                self._continue(name, one, prompts[at : at + size], count)
                done += count * len(prompts[at : at + size])
        self.watch("writing", done, total)

    def _has(self, one: Strategy, prompt: int, count: int) -> bool:
        return all(self._key(one, prompt, sample) in self.lines for sample in range(count))

    def _key(self, one: Strategy, prompt: int, sample: int) -> str:
        asked = self.asked
        text = asked.prompts[prompt].text
        return _hash(self.writer.digest, str(one), text, sample, asked.seed, asked.max_new_tokens)

    def _continue(self, name: str, one: Strategy, prompts: Sequence[int], count: int) -> None:
        """Some prompts with one strategy. What does not draw writes the same each time, and is asked once."""
        asked, repeats = self.asked, 1 if one.way == "draw" else count
        texts = [asked.prompts[at].text for at in prompts]
        with _silently():
            made = generate(
                self.writer.opened,
                texts,
                one,
                samples=count // repeats,
                max_new_tokens=asked.max_new_tokens,
                seed=asked.seed,
                batch=ROWS,
            )
        begun = [prompt_ids(self.writer.tokenizer, texts[row.prompt]) for row in made]
        losses = of_tokens(self.writer.model, begun, [row.ids for row in made])
        for row, loss in zip(made, losses, strict=True):
            for sample in [row.sample] if repeats == 1 else range(count):
                self._add(
                    {
                        "key": self._key(one, prompts[row.prompt], sample),
                        "model": self.writer.digest,
                        "strategy": name,
                        "seed": asked.seed,
                        "max_new_tokens": asked.max_new_tokens,
                        "prompt": texts[row.prompt],
                        "sample": sample,
                        "ids": list(row.ids),
                        "text": row.text,
                        "ended": row.ended,
                        "loss": loss,
                        "tokens": len(row.ids),
                        "bytes": len(row.text.encode()),
                    }
                )

    def _add(self, line: Line) -> None:
        if line["key"] not in self.lines:
            append_line(self.folder / SAMPLES, line)
            self.lines[line["key"]] = line

    # -- the second model

    def _texts(self, chosen: dict[str, Strategy], wanted: dict[str, int]) -> Iterator[tuple[int, str]]:
        for name, count in wanted.items():
            for at in range(len(self.asked.prompts)):
                for sample in range(count):
                    yield at, self.lines[self._key(chosen[name], at, sample)]["text"]

    def _judge(self, texts: Iterable[tuple[int, str]]) -> None:
        """Ask the second model about every text that it has not seen."""
        if self.judge is None:
            return
        missing = [row for row in dict.fromkeys(texts) if self._score_key(*row) not in self.scores]
        for at in range(0, len(missing), ROWS):
            self.watch("the second model reads", at, len(missing))
            rows = missing[at : at + ROWS]
            prompts = [self.asked.prompts[prompt].text for prompt, _ in rows]
            found = of_texts(self.judge.model, self.judge.tokenizer, prompts, [text for _, text in rows])
            for row, one in zip(rows, found, strict=True):
                line = {"key": self._score_key(*row), **asdict(one)}
                append_line(self.folder / SCORES, line)
                self.scores[line["key"]] = line
        self.watch("the second model reads", len(missing), len(missing))

    def _score_key(self, prompt: int, text: str) -> str:
        assert self.judge is not None
        return _hash(self.judge.digest, self.asked.prompts[prompt].text, text)

    def _second(self, prompt: int, text: str) -> Likelihood | None:
        if self.judge is None:
            return None
        line = self.scores[self._score_key(prompt, text)]
        return Likelihood(line["loss"], line["tokens"], line["bytes"], line["unknown"])

    # -- what comes of it

    def _samples(self, one: Strategy, count: int) -> list[Sample]:
        made = []
        for at in range(len(self.asked.prompts)):
            for sample in range(count):
                line = self.lines[self._key(one, at, sample)]
                own = Likelihood(line["loss"], line["tokens"], line["bytes"])
                text = line["text"]
                made.append(Sample(at, sample, tuple(line["ids"]), text, own, self._second(at, text)))
        return made

    def _tallies(self, name: str, one: Strategy, count: int) -> dict[str, Tallies]:
        self.watch(f"measuring: {name}", 0, 0)
        return self._tallied(self._samples(one, count))

    def _tallied(self, samples: Sequence[Sample]) -> dict[str, Tallies]:
        return tallies(samples, len(self.asked.prompts), [text for _, text in self._cut])

    @cached_property
    def _cut(self) -> list[tuple[list[int], str | None]]:
        """What people wrote, as tokens and as text, no longer than a sample may be."""
        made: list[tuple[list[int], str | None]] = []
        for prompt in self.asked.prompts:
            if not prompt.continuation:
                made.append(([], None))
                continue
            joint = "" if not prompt.text or prompt.text[-1].isspace() else " "
            begun, written = split(self.writer.tokenizer, prompt.text, joint + prompt.continuation)
            written = written[: self.asked.max_new_tokens]
            made.append((written, continuation_text(self.writer.tokenizer, begun, written)))
        return made

    def _people(self) -> list[Sample]:
        """People's continuations as if a strategy had written them."""
        rows = [(at, ids, text) for at, (ids, text) in enumerate(self._cut) if text is not None]
        begun = [prompt_ids(self.writer.tokenizer, self.asked.prompts[at].text) for at, _, _ in rows]
        losses = of_tokens(self.writer.model, begun, [ids for _, ids, _ in rows])
        return [
            Sample(at, 0, tuple(ids), text, Likelihood(loss, len(ids), len(text.encode())), self._second(at, text))
            for (at, ids, text), loss in zip(rows, losses, strict=True)
        ]

    # -- the sweep

    def _only_swept(self, points: Sequence[Point]) -> dict[str, int]:
        """How many samples the sweep needs of strategies that are not compared anyway."""
        there = {str(one) for one in self.asked.strategies.values()}
        return {point.name: self.asked.swept for point in points if str(point.strategy) not in there}

    def _swept(self, points: Sequence[Point]) -> list[dict[str, Any]]:
        made, known = [], {}
        for order, point in enumerate(points):
            if point.name not in known:
                columns = self._tallies(point.name, point.strategy, self.asked.swept)
                known[point.name] = {
                    name: found.as_row() for name, column in columns.items() if (found := figure(name, column))
                }
            row = {"family": point.family, "label": point.label, "end": point.end, "strategy": point.name}
            made.append({**row, "order": order, "figures": known[point.name]})
        return made

    # -- a closer look

    def _traces(self) -> list[dict[str, Any]]:
        """The first sample of the first prompt, token by token, for each strategy."""
        asked, made = self.asked, []
        for number, (name, one) in enumerate(asked.strategies.items()):
            self.watch(f"token by token: {name}", number, len(asked.strategies))
            with _silently():
                steps = trace(
                    self.writer.opened,
                    self.writer.tokenizer,
                    asked.prompts[0].text,
                    one,
                    max_new_tokens=asked.max_new_tokens,
                    seed=asked.seed,
                )
            line = self.lines[self._key(one, 0, 0)]
            self._check_same(line, steps)
            made.append({"strategy": name, "prompt": 0, "text": line["text"], "note": note(one), "steps": steps})
        return made

    def _check_same(self, line: Line, steps: Sequence[dict[str, Any]]) -> None:
        """What is drawn anew must be what was kept: samples of a version that drew differently are not to be mixed."""
        drawn = [step["id"] for step in steps][: len(line["ids"])]
        if drawn != line["ids"]:
            raise RunFolderError(
                f"{self.folder / SAMPLES}: {line['strategy']} writes another text now than it did then (another "
                "version of the package?); give another --out"
            )

    def _laws(self) -> list[dict[str, Any]]:
        self.watch("limits as laws", 0, 0)
        asked = self.asked

        def write(one: Strategy, prompts: Sequence[int]) -> list[list[int]]:
            texts = [asked.prompts[at].text for at in prompts]
            with _silently():
                made = generate(
                    self.writer.opened, texts, one, max_new_tokens=asked.max_new_tokens, seed=asked.seed, batch=ROWS
                )
            return [list(row.ids) for row in made]

        return check(self.writer.model, [prompt_ids(self.writer.tokenizer, one.text) for one in asked.prompts], write)

    def _notes(self, chosen: dict[str, Strategy], wanted: dict[str, int]) -> list[str]:
        """What a reader must know before the figures."""
        said = []
        longest = max(len(prompt_ids(self.writer.tokenizer, one.text)) for one in self.asked.prompts)
        if longest + self.asked.max_new_tokens > self.writer.model.context:
            said.append(
                f"Some texts are longer than the model’s context of {self.writer.model.context} tokens: by the end it "
                "has forgotten how they began."
            )
        if self.judge is not None:
            keys = {self._score_key(*row) for row in self._texts(chosen, wanted)}
            unknown, tokens = (sum(self.scores[key][what] for key in keys) for what in ("unknown", "tokens"))
            if unknown:
                said.append(
                    f"The second model does not know {100 * unknown / tokens:.1f} % of its tokens in these texts. It "
                    "guesses “unknown” too easily, so its bits per byte flatter texts with rare words."
                )
        return said


def _hash(*parts: object) -> str:
    return hashlib.blake2b(json.dumps(parts).encode(), digest_size=12).hexdigest()


class _silently(warnings.catch_warnings):  # noqa: N801  used as a statement
    """A text that outgrows the context is said once, in the report, and not at every chunk."""

    def __enter__(self) -> Any:
        entered = super().__enter__()
        warnings.simplefilter("ignore", SlidingWarning)
        return entered
