"""Layer-dropped students: models with fewer layers, initialized with the weights of the teacher."""

import pytest
import torch

from headtohead.errors import ModelError
from headtohead.pretrained.layer_dropping import drop_layers, select_layer_indices
from headtohead.pretrained.pretrained_model import PretrainedModel
from headtohead.pretrained.student_model import StudentModel

transformers = pytest.importorskip("transformers")
VOCAB = 97


def build_gpt2(layers: int = 6) -> PretrainedModel:
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=VOCAB, n_positions=32, n_embd=16, n_layer=layers, n_head=2)
    return PretrainedModel(transformers.GPT2LMHeadModel(config).eval(), "tiny")


def build_llama(layers: int = 6, **settings) -> PretrainedModel:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=VOCAB,
        max_position_embeddings=32,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=1,
        **settings,
    )
    return PretrainedModel(transformers.LlamaForCausalLM(config).eval(), "tiny")


def build_qwen(layers: int = 6) -> PretrainedModel:
    """Return a model whose configuration contains a list with one entry per layer."""
    torch.manual_seed(0)
    config = transformers.Qwen2Config(
        vocab_size=VOCAB,
        max_position_embeddings=32,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=1,
    )
    return PretrainedModel(transformers.Qwen2ForCausalLM(config).eval(), "tiny")


INPUT_IDS = torch.arange(10)[None] % VOCAB


def test_layers_are_selected_evenly_or_from_the_first():
    assert select_layer_indices(30, 10) == (0, 3, 6, 10, 13, 16, 19, 23, 26, 29)
    assert select_layer_indices(30, 10, "first") == tuple(range(10))
    assert select_layer_indices(6, 1) == (0,)
    assert select_layer_indices(6, 6) == select_layer_indices(6, 6, "first") == tuple(range(6))
    for num_available in range(1, 40):
        for num_kept in range(1, num_available + 1):
            indices = select_layer_indices(num_available, num_kept)
            assert len(set(indices)) == num_kept
            assert list(indices) == sorted(indices)
    for num_kept in (0, 7):
        with pytest.raises(ModelError, match="between 1 and 6"):
            select_layer_indices(6, num_kept)


@pytest.mark.parametrize("build_teacher", [build_gpt2, build_llama, build_qwen])
@pytest.mark.parametrize("selection", ["evenly", "first"])
def test_a_student_computes_the_teacher_without_the_dropped_layers(build_teacher, selection):
    teacher = build_teacher()
    student = drop_layers(teacher, 3, selection)
    expected = build_teacher()
    base_model = expected.inner.base_model
    name = "h" if hasattr(base_model, "h") else "layers"
    kept_indices = select_layer_indices(6, 3, selection)
    setattr(base_model, name, torch.nn.ModuleList(getattr(base_model, name)[i] for i in kept_indices))
    expected.inner.config.num_hidden_layers = 3
    with torch.no_grad():
        torch.testing.assert_close(student(INPUT_IDS).logits, expected(INPUT_IDS).logits)
    assert len(getattr(teacher.inner.base_model, name)) == 6
    assert student.name == "tiny, 3 of 6 layers"


def test_a_student_with_all_layers_equals_its_teacher_and_shares_no_tensors():
    teacher = build_llama()
    before = {name: tensor.clone() for name, tensor in teacher.state_dict().items()}
    complete = drop_layers(teacher, 6)
    with torch.no_grad():
        assert torch.equal(complete(INPUT_IDS).logits, teacher(INPUT_IDS).logits)
        for tensor in complete.parameters():
            tensor.add_(1.0)
    assert all(torch.equal(tensor, before[name]) for name, tensor in teacher.state_dict().items())


def test_a_student_decodes_with_its_cache():
    from headtohead.generation.generate import generate

    student = drop_layers(build_llama(), 2)
    (result,) = generate(student, [[1, 2, 3]], "greedy", max_new_tokens=8)
    ids = [1, 2, 3]
    with torch.no_grad():
        for _ in range(8):
            ids.append(int(student(torch.tensor([ids])).logits[0, -1].argmax()))
    assert list(result.ids) == ids[3:]


def test_dropping_layers_does_not_change_the_global_random_state():
    teacher = build_llama()
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    drop_layers(teacher, 2)
    assert torch.equal(torch.rand(1), expected)


def test_the_output_layer_maps_hidden_states_to_logits():
    student = StudentModel(build_llama().inner)
    mask = torch.ones(2, 10, dtype=torch.bool)
    mask[1, 6:] = False
    ids = INPUT_IDS.repeat(2, 1)
    with torch.no_grad():
        logits = student(ids, mask).logits
        torch.testing.assert_close(student.output(student.compute_hidden_states(ids, mask))[mask], logits[mask])
    assert student.has_linear_logits()


def test_a_model_that_scales_its_logits_is_detected():
    torch.manual_seed(0)
    config = transformers.CohereConfig(
        vocab_size=VOCAB,
        max_position_embeddings=32,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        logit_scale=0.0625,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    student = StudentModel(transformers.CohereForCausalLM(config))
    assert not student.has_linear_logits()


def test_models_that_cannot_be_students_are_rejected():
    with pytest.raises(ModelError, match="supports 32 positions, got 64"):
        StudentModel(build_llama().inner, "tiny", 64)
    config = transformers.BertConfig(
        vocab_size=VOCAB, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24
    )
    with pytest.raises(ModelError, match="a student must be a decoder"):
        StudentModel(transformers.BertModel(config), "tiny")
