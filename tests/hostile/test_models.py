"""Untrusted models: tokenizer.json, config.json, safetensors, GGUF, and code in a run folder."""

import json
import struct
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tools.fuzz_targets import FUZZ_TARGETS, run_target
from tools.fuzz_targets.sample_experiment import build_raw_experiment, write_corpus

from headtohead.config import trial_settings
from headtohead.config.tables import model as config_model
from headtohead.data.tokenization.tokenizers import CorpusTokenizer
from headtohead.errors import ModelError
from headtohead.experiment import loading, trust
from headtohead.model_factory import build_model
from headtohead.pretrained import weights
from headtohead.runner.verification.verify import verify_experiment
from headtohead.saved_models import model_io
from headtohead.saved_models.open_model import open_model
from headtohead.trials.trial import run_trial

from .odd import other_values, spoiled, tried

KINDS = ("tokenizer", "config", "gguf")


@pytest.mark.parametrize("kind", KINDS)
def test_a_sound_file_is_read(scratch, kind):
    assert run_target(kind, FUZZ_TARGETS[kind].build_seeds(scratch)[0], scratch) is None


@pytest.mark.parametrize("kind", ["tokenizer", "gguf"])
@tried
@given(data=st.data())
def test_a_corrupted_file_is_read_or_rejected_with_a_message(scratch, kind, data):
    sound = data.draw(st.sampled_from(FUZZ_TARGETS[kind].build_seeds(scratch)))
    run_target(kind, data.draw(spoiled(sound) | st.binary(max_size=60)), scratch)


@tried
@given(data=st.data())
def test_tensors_that_were_corrupted_are_rejected_with_a_message(scratch, data):
    sound = data.draw(st.sampled_from(FUZZ_TARGETS["safetensors"].build_seeds(scratch)))
    length = int.from_bytes(sound[:8], "little")
    head = data.draw(other_values(json.loads(sound[8 : 8 + length])))
    result = len(head).to_bytes(8, "little") + head + sound[8 + length :]
    run_target("safetensors", data.draw(st.just(result) | spoiled(sound)), scratch)


@pytest.mark.parametrize("kind", ["tokenizer", "config"])
@tried
@given(data=st.data())
def test_other_values_are_read_or_rejected_with_a_message(scratch, kind, data):
    sound = json.loads(FUZZ_TARGETS[kind].build_seeds(scratch)[0])
    run_target(kind, data.draw(other_values(sound)), scratch)


def test_weights_of_another_shape_are_rejected_although_the_run_vouches_for_them(scratch):
    scores, *_ = FUZZ_TARGETS["safetensors"].build_seeds(scratch)
    assert "the weights do not match the model" in str(run_target("safetensors", scores, scratch))


# ---- claims that a file cannot keep


def safetensors(folder: Path, head: object, content: bytes = b"") -> Path:
    raw = head if isinstance(head, bytes) else json.dumps(head).encode()
    (folder / "config.json").write_text('{"model_type": "gpt2"}')
    (folder / "model.safetensors").write_bytes(len(raw).to_bytes(8, "little") + raw + content)
    return folder


@pytest.mark.parametrize(
    ("head", "said"),
    [
        (
            {"a": {"dtype": "F32", "shape": [2**60, 2**60], "data_offsets": [0, 4]}},
            "more parameters than the file can hold",
        ),
        (
            {"a": {"dtype": "F32", "shape": [10**30], "data_offsets": [0, 4]}},
            "is not a safetensors file, or is corrupted",
        ),
        ({"a": {"dtype": "F32", "shape": [1.5], "data_offsets": [0, 4]}}, "is not a safetensors file, or is corrupted"),
        ({"a": {"dtype": "F32", "shape": "x", "data_offsets": [0, 4]}}, "is not a safetensors file, or is corrupted"),
        ({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 2**50]}}, "is incomplete"),
        (b"[" * 5_000, "is not a safetensors file, or is corrupted"),
        ([1], "is not a safetensors file, or is corrupted"),
    ],
)
def test_a_head_of_tensors_that_cannot_be_is_rejected(tmp_path, head, said):
    with pytest.raises(ModelError, match=said):
        weights.locate_weights(safetensors(tmp_path, head, bytes(4)))


def test_a_length_of_the_head_beyond_the_file_is_not_believed(tmp_path):
    safetensors(tmp_path, {})
    (tmp_path / "model.safetensors").write_bytes((2**60).to_bytes(8, "little") + b"{}")
    with pytest.raises(ModelError, match="is not a safetensors file, or is corrupted"):
        weights.locate_weights(tmp_path)


@pytest.mark.parametrize("listed", [[1], {"a": 1}, {"a": ["x"]}, {"a": "../other.safetensors"}, {"a": "/dev/zero"}])
def test_an_index_that_leads_away_is_rejected(tmp_path, listed):
    safetensors(tmp_path, {})
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": listed}))
    with pytest.raises(ModelError, match=r"weight_map|not a safetensors file in the same folder"):
        weights.locate_weights(tmp_path)


@pytest.mark.parametrize("config", ['{"model_type": ["x"]}', '{"architectures": [1]}', '{"architectures": "x"}'])
def test_a_configuration_of_another_shape_is_rejected(tmp_path, config):
    safetensors(tmp_path, {})
    (tmp_path / "config.json").write_text(config)
    with pytest.raises(ModelError, match="must be a"):
        weights.locate_weights(tmp_path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"num_hidden_layers": 10**6}, "declares 1,000,000 layers"),
        ({"num_hidden_layers": 1500, "hidden_size": 1024}, "declares [0-9,]+ parameters"),
        ({"vocab_size": 10**9}, "declares [0-9,]+ parameters"),
        ({"num_attention_heads": 0}, "transformers cannot load these weights"),
    ],
)
def test_a_configuration_of_a_larger_model_than_the_file_is_rejected(tmp_path, tiny_roberta, change, said):
    for path in tiny_roberta.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(ModelError, match=said):
        open_model(tmp_path)


def gguf(entries: bytes, count: int, tensors: bytes = b"", tensor_count: int = 0) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, tensor_count, count) + entries + tensors


def entry(kind: int, value: bytes) -> bytes:
    return struct.pack("<Q", 1) + b"a" + struct.pack("<I", kind) + value


@pytest.mark.parametrize(
    "data",
    [
        gguf(b"", 2**60),
        gguf(b"", 0, tensor_count=2**63),
        gguf(entry(8, struct.pack("<Q", 2**31)), 1),
        gguf(entry(9, struct.pack("<IQ", 5, 2**31)), 1),
        gguf(entry(9, struct.pack("<IQ", 8, 1) + struct.pack("<Q", 2**64 - 1)), 1),
        gguf(entry(9, struct.pack("<IQ", 9, 1) * 5_000), 1),
        gguf(entry(99, b""), 1),
        gguf(b"", 0, struct.pack("<Q", 1) + b"w" + struct.pack("<IQQIQ", 2, 2**40, 2**40, 0, 0), 1),
        gguf(b"", 0, struct.pack("<Q", 1) + b"w" + struct.pack("<I", 2**31), 1),
    ],
)
def test_a_gguf_head_that_claims_what_does_not_exist_is_rejected(scratch, data):
    assert "is corrupted or incomplete" in str(run_target("gguf", data, scratch))


# ---- tokenizers


def test_a_tokenizer_with_numbers_that_no_model_has_is_rejected(scratch):
    content = json.loads(FUZZ_TARGETS["tokenizer"].build_seeds(scratch)[0])
    content["model"]["vocab"]["the"] = 4_000_000_000
    began = time.process_time()
    assert "must be consecutive" in str(run_target("tokenizer", json.dumps(content).encode(), scratch))
    assert time.process_time() - began < 5, "it was counted up to"


def test_a_pattern_that_tries_every_way_ends(scratch):
    """(a+)+$ on a row of a: each additional letter doubles the time of an unbounded backtracking matcher."""
    content = json.loads(FUZZ_TARGETS["tokenizer"].build_seeds(scratch)[1])
    content["pre_tokenizer"]["pattern"] = {"Regex": "(?:a+)+$"}
    (scratch / "tokenizer.json").write_text(json.dumps(content))
    began = time.process_time()
    CorpusTokenizer.load(scratch).encode("a" * 40 + "b")
    assert time.process_time() - began < 20


# ---- code


@pytest.fixture(scope="module")
def with_code(tmp_path_factory) -> Path:
    """Return a run with custom parts whose code leaves a trace when it is executed."""
    place = tmp_path_factory.mktemp("code")
    mark = place / "mark"
    (place / "my_norm.py").write_text(
        "from pathlib import Path\nfrom torch import nn\nfrom headtohead.parts import Norm, register_part\n"
        f"with Path({str(mark)!r}).open('a') as file: file.write('run\\n')\n\n"
        "@register_part('norm', 'hostile-norm')\nclass Mine(Norm):\n"
        "    def __init__(self, sizes):\n        super().__init__(sizes)\n"
        "        self.inner = nn.LayerNorm(sizes.width)\n"
        "    def forward(self, x, context):\n        return self.inner(x)\n"
    )
    raw = build_raw_experiment(write_corpus(place / "texts"))
    raw |= {"plugins": [str(place / "my_norm.py")], "variants": {}, "probe": {}}
    raw["model"] = {**raw["model"], "norm": "hostile-norm"}
    experiment = loading.build_experiment(raw)
    run_trial(trial_settings.build_trial(experiment, "baseline", 1), place / "run", device="cpu")
    return place


def strange(with_code: Path, to: Path) -> Path:
    """Return the same run with code that was never executed on this machine."""
    import shutil

    shutil.copytree(with_code / "run", to)
    own = to / "own" / "my_norm.py"
    own.write_text(own.read_text().replace("hostile-norm", f"norm-{to.name}") + "\n# changed\n")
    config = (to / "config.json").read_text()
    (to / "config.json").write_text(config.replace("hostile-norm", f"norm-{to.name}"))
    return to


def test_custom_code_runs_as_before(with_code):
    assert model_io.load_saved_model(with_code / "run").trial.plugins


def test_code_of_another_users_run_is_not_run_until_it_is_allowed(with_code, tmp_path):
    run = strange(with_code, tmp_path / "theirs")
    before = (with_code / "mark").read_text()
    with pytest.raises(ModelError, match=r"contains code that opening it would execute.*my_norm\.py.*h2h trust"):
        open_model(run)
    assert (with_code / "mark").read_text() == before
    assert trust.trust_run(run) == [run / "own" / "my_norm.py"]
    open_model(run)
    assert (with_code / "mark").read_text() != before


def test_allowed_code_that_was_changed_is_other_code(with_code, tmp_path):
    run = strange(with_code, tmp_path / "changed")
    trust.trust_run(run)
    with (run / "own" / "my_norm.py").open("a") as file:
        file.write("x = 1\n")
    with pytest.raises(ModelError, match="contains code that opening it would execute"):
        model_io.load_saved_model(run)


@pytest.mark.parametrize("name", ["../../elsewhere.py", "/usr/lib/elsewhere.py", "own/../../elsewhere.py", "own/x.txt"])
def test_code_outside_the_run_is_not_run(with_code, tmp_path, name):
    run = strange(with_code, tmp_path / "away")
    config = json.loads((run / "config.json").read_text())
    config["trial"]["plugins"] = [name]
    (run / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="refers to code outside its folder own/"):
        model_io.load_saved_model(run)


def test_nothing_of_a_run_is_run_to_verify_or_report_it(scratch):
    """`run_target` forbids execution; this test reads a folder with code through the run-folder readers."""
    place = FUZZ_TARGETS["verify"].build_seeds(scratch) and scratch / "runs"
    own = place / "baseline" / "seed-0" / "own"
    own.mkdir(exist_ok=True)
    (own / "evil.py").write_text("raise SystemExit('run')\n")
    try:
        assert all(check.location for check in verify_experiment(place))
    finally:
        (own / "evil.py").unlink()
        own.rmdir()


# ---- sizes


def test_a_model_without_room_is_rejected_before_it_is_made():
    model = config_model.TransformerConfig.model_validate({"width": 2**17, "layers": 1000, "heads": 2**10})
    with pytest.raises(ModelError, match="not enough memory for"):
        build_model(model, 100)


def test_settings_of_a_larger_model_than_the_weights_are_rejected(scratch):
    content = json.loads(FUZZ_TARGETS["config"].build_seeds(scratch)[0])
    content["trial"]["model"] |= {"width": 4096, "layers": 40, "heads": 2}
    assert "config.json describes a model of" in str(run_target("config", json.dumps(content).encode(), scratch))
