"""Shared fixtures: run-time shape checks, one thread, no network, and the real data if it is available."""

import contextlib
import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"
# The hub's cache stays where it is when ours is moved (see own_cache).
os.environ.setdefault("HF_HOME", str(Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "huggingface"))
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch
from jaxtyping import config, install_import_hook

# beartype checks jaxtyping shapes on every call into these packages; an int may stand for a float, as in mypy.
TYPECHECKED = (
    "attention_analysis.map_checks",
    "attention_analysis.maps",
    "attention_analysis.head_metrics",
    "audit",
    "data",
    "generation",
    "nn",
    "pretrained",
    "text_metrics",
    "training",
    "verdict",
)
install_import_hook(
    [f"headtohead.{name}" for name in TYPECHECKED],
    "beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))",
)

# Two threads on a busy machine with two cores are many times slower than one.
torch.set_num_threads(1)

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
SHARED = Path(__file__).parents[2] / "shared" / "data"


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Cache tokens in a temporary folder instead of the user's cache."""
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Return an installed Chromium, driven by playwright."""
    if CHROMIUM is None:
        pytest.skip("there is no Chromium on this machine")
    driver = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with driver.sync_playwright() as play:
        loaded = play.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield loaded
        loaded.close()


@pytest.fixture
def unchecked() -> Iterator[None]:
    """Disable shape checks, which slow down long loops by a factor of five and are covered by other tests."""
    config.update("jaxtyping_disable", True)
    yield
    config.update("jaxtyping_disable", False)


class InProcessWorker:
    """A worker that runs its jobs in this process, with the code of a worker process and without shape checks.

    Starting a process takes longer than training a tiny model.
    """

    def __init__(self, message_queue: Any, environment: dict[str, str], log_path: Path) -> None:
        self.job: Any = None
        self.is_ready = True
        self.exit_reason = ""
        self._message_queue = message_queue

    def start_job(self, job: Any, device: str) -> None:
        from headtohead.execution.worker import run_and_report

        self.job = job
        job.start()
        request = json.loads(json.dumps({**job.to_request(device), "request": 1}))
        checks_are_disabled = config.jaxtyping_disable
        config.update("jaxtyping_disable", True)
        try:
            run_and_report(request, self._send)
        finally:
            config.update("jaxtyping_disable", checks_are_disabled)

    def _send(self, message: dict[str, Any]) -> None:
        received = json.loads(json.dumps(message))
        received.pop("request")
        self._message_queue.put((self, received))

    def end(self) -> None:
        pass

    def close(self) -> None:
        pass


@pytest.fixture(scope="session")
def in_process_pool() -> Any:
    """Return a pool of one worker that runs in this process."""
    from headtohead.execution.worker_pool import WorkerPool

    return WorkerPool(1, InProcessWorker, can_generate_texts=True)


@contextlib.contextmanager
def run_trials_with(pool: Any) -> Iterator[None]:
    """Use this pool for experiments that name no backend, also where they are started by a command."""
    from headtohead.runner import run_experiment

    def build_pool(backend: Any, *arguments: Any) -> Any:
        return build_backend_pool(pool if backend is None else backend, *arguments)

    build_backend_pool = run_experiment.build_backend_pool
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_experiment, "build_backend_pool", build_pool)
        yield


@pytest.fixture
def in_process_workers(in_process_pool: Any) -> Iterator[None]:
    """Run trials in this process, for tests that do not depend on processes."""
    with run_trials_with(in_process_pool):
        yield


@pytest.fixture(scope="session")
def tiny_roberta(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a random two-layer RoBERTa with its tokenizer, in the format of transformers."""
    import transformers
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

    specials = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    tokens = [*specials, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    backend = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    names = {"bos": "<s>", "cls": "<s>", "eos": "</s>", "sep": "</s>", "pad": "<pad>", "unk": "<unk>", "mask": "<mask>"}
    special = {f"{name}_token": token for name, token in names.items()}
    folder = tmp_path_factory.mktemp("encoders") / "tiny-roberta"
    transformers.PreTrainedTokenizerFast(tokenizer_object=backend, **special).save_pretrained(folder)
    config = transformers.RobertaConfig(
        vocab_size=len(tokens),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=24,
        max_position_embeddings=514,
        type_vocab_size=1,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        transformers.RobertaForMaskedLM(config).save_pretrained(folder)
    return folder


@pytest.fixture
def shared() -> Callable[[str], Path]:
    """Return a folder of real data; skip the test if it is missing."""

    def found(name: str) -> Path:
        folder = SHARED / name
        if not folder.exists():
            pytest.skip(f"the data set {name} is not at ../shared/data")
        return folder

    return found


# A small world: a text with some structure, and an experiment on it that trains in a second.

SUBJECTS = ["the president", "the people", "our nation", "a free country", "the congress", "every worker"]
VERBS = ["will defend", "must build", "has asked for", "cannot forget", "will honor", "wants"]
OBJECTS = ["the peace", "a stronger economy", "new schools", "the law", "this promise", "better jobs", "our allies"]


def sentence(draw: random.Random) -> str:
    return f"{draw.choice(SUBJECTS)} {draw.choice(VERBS)} {draw.choice(OBJECTS)} ."


def write_text(folder: Path) -> Path:
    draw = random.Random(0)
    folder.mkdir()
    for name, rows in (("train", 300), ("test", 60), ("validation", 60)):
        (folder / f"{name}.txt").write_text("\n".join(sentence(draw) for _ in range(rows)) + "\n")
    return folder


def write_rows(folder: Path, test: int = 60) -> Path:
    draw = random.Random(1)
    folder.mkdir()
    for name, rows in (("train", 200), ("test", test)):
        lines = []
        for _ in range(rows):
            text = sentence(draw)
            lines.append(f"{'builder' if 'build' in text or 'jobs' in text else 'other'}\t{text}")
        (folder / f"{name}.tsv").write_text("label\ttext\n" + "\n".join(lines) + "\n")
    return folder


@pytest.fixture
def text_folder(tmp_path: Path) -> Path:
    return write_text(tmp_path / "text")


@pytest.fixture
def rows_folder(tmp_path: Path) -> Path:
    return write_rows(tmp_path / "rows")


@pytest.fixture
def small(text_folder: Path) -> Any:
    """Build a small experiment. Keyword arguments override settings of its tables."""
    from headtohead.experiment import loading

    def build(**changes: dict[str, Any]) -> Any:
        raw: dict[str, Any] = {
            "question": "Does it help?",
            "task": "language-model",
            "seeds": 2,
            "data": {"source": str(text_folder), "allow_overlap": True},  # few sentences are possible
            "model": {"width": 16, "layers": 1, "heads": 2, "context": 8},
            "training": {"budget": "40 steps", "batch_size": 8, "eval_every": 10, "checkpoint_every": 10},
            "variants": {"alibi": {"model": {"position": "alibi"}}},
            "probe": {"prompts": ["the people"], "sentences": {"normal": "the people will defend the peace ."}},
        }
        for table, settings in changes.items():
            merged = isinstance(settings, dict) and table != "variants"
            raw[table] = {**raw.get(table, {}), **settings} if merged else settings
        return loading.build_experiment(raw, "small")

    return build
