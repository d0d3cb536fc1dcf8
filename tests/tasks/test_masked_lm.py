"""Masked language modelling: masks are a function of (seed, step), and pseudo-perplexity equals a slow reference."""

import pytest
import torch
from torch.nn import functional as F

from headtohead.attention_analysis.analysis import analyze_attention
from headtohead.config.tables.data import DataConfig
from headtohead.config.tables.training import TrainingConfig
from headtohead.config.trial_settings import build_trial
from headtohead.data.batches import IGNORE_INDEX, Batch
from headtohead.data.encoding import TokenStream
from headtohead.data.masking import MaskedBatchSchedule, build_masked_examples
from headtohead.data.tokenization.tokenizers import CorpusTokenizer, train_word_tokenizer
from headtohead.errors import ConfigError, DataError, ModelError
from headtohead.experiment import loading
from headtohead.experiment.run_folder import Run
from headtohead.generation.generate import generate
from headtohead.json_files import read_json
from headtohead.nn.transformer import Transformer
from headtohead.saved_models import inference, model_io
from headtohead.tasks.registry import get_task, prepare_dataset
from headtohead.training.task_objectives.evaluation_pass import run_evaluation_pass
from headtohead.training.task_objectives.language_modeling import MaskedLanguageModelObjective
from headtohead.trials.trial import run_trial

WORDS = [f"w{i}" for i in range(40)]


def build_tokenizer(*, add_bos_eos: bool = False, add_mask: bool = True) -> CorpusTokenizer:
    return CorpusTokenizer(train_word_tokenizer([" ".join(WORDS)], add_bos_eos=add_bos_eos, add_mask=add_mask))


def build_schedule(seed: int = 0, *, length: int = 5000, **masking: object) -> MaskedBatchSchedule:
    tokenizer = build_tokenizer()
    first = tokenizer.vocab_size - len(WORDS)
    tokens = first + torch.arange(length) % len(WORDS)
    training = TrainingConfig.model_validate({"batch_size": 16, "masking": masking})
    return MaskedBatchSchedule(TokenStream("train", tokens), training, DataConfig(), 32, seed, tokenizer)


@pytest.fixture
def masked(text_folder, rows_folder):
    """Build a small masked-lm experiment. Keyword arguments override settings of its tables."""

    def build(rows: str = "stream", **tables):
        source = rows_folder if rows == "labelled" else text_folder
        raw = {
            "question": "?",
            "task": "masked-lm",
            "seeds": 1,
            "data": {"source": str(source), "rows": rows},
            "model": {"width": 16, "layers": 1, "heads": 2, "context": 12},
            "training": {
                "budget": "60 steps",
                "batch_size": 8,
                "eval_every": 60,
                "checkpoint_every": 60,
                "optimizer": {"kind": "adamw", "lr": 1e-2},
            },
            "probe": {"sentences": {"normal": "the people will defend the peace ."}},
        }
        for table, settings in tables.items():
            raw[table] = {**raw.get(table, {}), **settings}
        return loading.build_experiment(raw, "masked")

    return build


def test_masks_are_a_function_of_seed_and_step():
    first, second_result, other_seed = build_schedule(), build_schedule(), build_schedule(1)
    second_result.get_batch(7)  # earlier draws leave no trace
    for step in (3, 0):
        assert torch.equal(first.get_batch(step).input_ids, second_result.get_batch(step).input_ids)
        assert torch.equal(first.get_batch(step).labels, second_result.get_batch(step).labels)
        assert not torch.equal(first.get_batch(step).labels, other_seed.get_batch(step).labels)
    assert not torch.equal(first.get_batch(0).labels, first.get_batch(1).labels)


@pytest.mark.parametrize("rate", [0.15, 0.4])
def test_the_rate_and_the_replacements_are_those_of_bert(rate):
    schedule = build_schedule(rate=rate)
    batches = [schedule.get_batch(step) for step in range(60)]
    inputs, labels = (torch.cat([getattr(b, name) for b in batches]) for name in ("input_ids", "labels"))
    is_predicted = labels != IGNORE_INDEX
    assert float(is_predicted.double().mean()) == pytest.approx(rate, abs=0.02)
    replaced, original = inputs[is_predicted], labels[is_predicted]
    assert float((replaced == schedule.mask_id).double().mean()) == pytest.approx(0.8, abs=0.02)
    assert float((replaced == original).double().mean()) == pytest.approx(0.1 + 0.1 / len(WORDS), abs=0.02)
    assert not torch.isin(replaced, torch.tensor([0])).any()  # never padding


def test_every_predicted_token_can_be_masked_and_others_stay():
    masked, bert = build_schedule(replacement="mask"), build_schedule()
    for step in range(5):
        batch = masked.get_batch(step)
        is_predicted = batch.labels != IGNORE_INDEX
        assert bool((batch.input_ids[is_predicted] == masked.mask_id).all())
        assert not bool((batch.input_ids[~is_predicted] == masked.mask_id).any())
        assert torch.equal(batch.labels, bert.get_batch(step).labels)  # the same positions
        unmasked = torch.where(is_predicted, batch.labels, batch.input_ids)
        assert bool((unmasked.diff(dim=1) % len(WORDS) == 1).all())  # the blocks of the stream


def test_a_batch_without_a_draw_below_the_rate_still_has_a_prediction():
    assert build_schedule(rate=1e-6).get_batch(0).num_predictions == 1


def test_the_digest_tells_masking_rates_apart():
    assert build_schedule(rate=0.15).compute_digest(3) != build_schedule(rate=0.4).compute_digest(3)


def build_model(tokenizer: CorpusTokenizer) -> Transformer:
    from headtohead.config.tables.model import TransformerConfig
    from headtohead.model_factory import build_model

    model = build_model(
        TransformerConfig(width=16, layers=2, heads=2, context=12), tokenizer.vocab_size, is_causal=False
    )
    assert isinstance(model, Transformer)
    return model


def test_the_loss_reads_masked_positions_only():
    schedule = build_schedule()
    model = build_model(build_tokenizer())
    batch = schedule.get_batch(0).slice_rows(0, 4)
    batch = Batch(batch.input_ids[:, :12], batch.labels[:, :12])
    loss = MaskedLanguageModelObjective(schedule.mask_id).compute_loss(model, batch)
    logits = model(batch.input_ids).logits
    is_predicted = batch.labels != IGNORE_INDEX
    torch.testing.assert_close(loss, F.cross_entropy(logits[is_predicted], batch.labels[is_predicted]))


def test_an_encoder_reads_both_sides():
    model = build_model(build_tokenizer()).eval()
    ids = torch.arange(10, 22)[None]
    changed = ids.clone()
    changed[0, -1] = 30
    assert not model.is_causal
    assert not torch.allclose(model(ids).logits[0, 0], model(changed).logits[0, 0])


@pytest.mark.parametrize("add_bos_eos", [False, True])
def test_pseudo_perplexity_equals_a_slow_reference(add_bos_eos):
    tokenizer = build_tokenizer(add_bos_eos=add_bos_eos)
    model = build_model(tokenizer).eval()
    texts = [" ".join(WORDS[i : i + n]) for i, n in ((0, 5), (7, 9), (3, 2))]
    from headtohead.data.encoding import encode_split
    from headtohead.data.splits import Split

    split = Split("test", "test", tuple(texts), (0, 0, 0))
    encoded = encode_split(split, tokenizer, DataConfig(), has_labels=True)
    examples = build_masked_examples(encoded, 12, tokenizer)
    mask_id = tokenizer.mask_id
    output = run_evaluation_pass(
        model, MaskedLanguageModelObjective(mask_id), examples.iter_batches(2), torch.device("cpu")
    )
    assert output.counts.tolist() == [5, 9, 2] == examples.prediction_counts.tolist()
    for row, text in enumerate(texts):
        ids = tokenizer.encode(text)
        ids = [tokenizer.bos_id, *ids, tokenizer.eos_id] if add_bos_eos else ids
        total = 0.0
        for position, token in enumerate(ids):
            if token in (tokenizer.bos_id, tokenizer.eos_id):
                continue
            copy = torch.tensor([ids])
            copy[0, position] = mask_id
            with torch.no_grad():
                total -= float(model(copy).logits[0, position].log_softmax(-1)[token])
        assert output.losses[row] == pytest.approx(total, rel=1e-5)


def test_a_stream_is_scored_in_blocks_and_every_token_once():
    tokenizer = build_tokenizer()
    stream = TokenStream("test", torch.arange(10, 41))
    examples = build_masked_examples(stream, 12, tokenizer)
    assert examples.prediction_counts.tolist() == [12, 12, 7]
    labels = torch.cat([batch.labels[batch.labels != IGNORE_INDEX] for batch in examples.iter_batches(2)])
    assert labels.tolist() == list(range(10, 41))


@pytest.mark.parametrize("rows", ["stream", "sentences", "labelled"])
def test_a_masked_language_model_trains_and_is_audited(masked, tmp_path, rows):
    trial = build_trial(masked(rows), "baseline", 0)
    result = run_trial(trial, tmp_path / "run", device="cpu")
    first = read_json(tmp_path / "run" / "probes.json")["sentences"]["normal"]
    assert result.metric == "perplexity"
    losses = [line.loss for line in Run(tmp_path / "run").metrics if line.split == "train"]
    assert losses[-1] < losses[0] - 0.3
    audits = {row["name"]: row["passed"] for row in read_json(tmp_path / "run" / "audits.json")["audits"]}
    assert audits["causality"] is None
    assert all(audits[name] for name in get_task("masked-lm").spec.required_audits)
    loaded = model_io.load_saved_model(tmp_path / "run")
    assert inference.score_text(loaded, first["text"]).model_dump(mode="json") == first
    assert len(first["tokens"]) == 7
    analysis = analyze_attention(tmp_path / "run", first["text"], ablate_heads=True)
    assert all(abs(row.rise) < 10 for rows in analysis.metrics_by_panel.values() for row in rows)
    with pytest.raises(ModelError, match="predicts the masked token and cannot generate text"):
        generate(loaded, ["the people"])


def test_masking_belongs_to_masked_language_models(small, masked):
    with pytest.raises(ConfigError, match=r"training.masking: applies to task masked-lm"):
        small(training={"masking": {"rate": 0.4}})
    with pytest.raises(ConfigError, match=r"training.masking.rate"):
        masked(training={"masking": {"rate": 1.0}})
    with pytest.raises(ConfigError, match=r"data.rows: labelled applies to task masked-lm"):
        small(data={"rows": "labelled"})


def test_a_tokenizer_file_without_a_mask_token_is_rejected(masked, tmp_path):
    build_tokenizer(add_mask=False).save(tmp_path)
    trial = build_trial(
        masked(data={"tokenizer": {"kind": "file", "path": str(tmp_path / "tokenizer.json")}}), "baseline", 0
    )
    with pytest.raises(DataError, match="requires a mask token"):
        prepare_dataset(trial.data, trial.task)
