"""Students: a teacher with fewer layers is a model of its own with the teacher's weights."""

import pytest
import torch

from headtohead.errors import ModelError
from headtohead.pretrained.layer_dropping import StudentModel, drop_layers, select_layers
from headtohead.pretrained.loading import PretrainedModel

transformers = pytest.importorskip("transformers")
VOCAB = 97


def _gpt2(layers: int = 6) -> PretrainedModel:
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=VOCAB, n_positions=32, n_embd=16, n_layer=layers, n_head=2)
    return PretrainedModel(transformers.GPT2LMHeadModel(config).eval(), "tiny")


def _llama(layers: int = 6, **more) -> PretrainedModel:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=VOCAB,
        max_position_embeddings=32,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=1,
        **more,
    )
    return PretrainedModel(transformers.LlamaForCausalLM(config).eval(), "tiny")


def _qwen(layers: int = 6) -> PretrainedModel:
    """Its configuration has a list with an entry for each layer."""
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


IDS = torch.arange(10)[None] % VOCAB


def test_layers_are_chosen_evenly_or_from_the_first_on():
    assert select_layers(30, 10) == (0, 3, 6, 10, 13, 16, 19, 23, 26, 29)
    assert select_layers(30, 10, "first") == tuple(range(10))
    assert select_layers(6, 1) == (0,)
    assert select_layers(6, 6) == select_layers(6, 6, "first") == tuple(range(6))
    for total in range(1, 40):
        for count in range(1, total + 1):
            kept = select_layers(total, count)
            assert len(set(kept)) == count
            assert list(kept) == sorted(kept)
    for count in (0, 7):
        with pytest.raises(ModelError, match="between 1 and 6"):
            select_layers(6, count)


@pytest.mark.parametrize("made", [_gpt2, _llama, _qwen])
@pytest.mark.parametrize("chosen", ["evenly", "first"])
def test_a_student_is_the_teacher_with_the_other_layers_taken_out(made, chosen):
    teacher = made()
    student = drop_layers(teacher, 3, chosen)
    layers = teacher.inner.base_model
    held = layers.h if hasattr(layers, "h") else layers.layers
    kept = select_layers(6, 3, chosen)
    by_hand = made()
    inside = by_hand.inner.base_model
    name = "h" if hasattr(inside, "h") else "layers"
    setattr(inside, name, torch.nn.ModuleList(getattr(inside, name)[i] for i in kept))
    by_hand.inner.config.num_hidden_layers = 3
    with torch.no_grad():
        torch.testing.assert_close(student(IDS).logits, by_hand(IDS).logits)
    assert len(held) == 6
    assert student.name == "tiny, 3 of 6 layers"


def test_training_the_student_leaves_the_teacher_alone_and_all_layers_are_the_teacher():
    teacher = _llama()
    before = {name: tensor.clone() for name, tensor in teacher.state_dict().items()}
    whole = drop_layers(teacher, 6)
    with torch.no_grad():
        assert torch.equal(whole(IDS).logits, teacher(IDS).logits)
        for tensor in whole.parameters():
            tensor.add_(1.0)
    assert all(torch.equal(tensor, before[name]) for name, tensor in teacher.state_dict().items())


def test_a_student_decodes_with_its_cache():
    from headtohead.generation.generate import generate

    student = drop_layers(_llama(), 2)
    (made,) = generate(student, [[1, 2, 3]], "greedy", max_new_tokens=8)
    ids = [1, 2, 3]
    with torch.no_grad():
        for _ in range(8):
            ids.append(int(student(torch.tensor([ids])).logits[0, -1].argmax()))
    assert list(made.ids) == ids[3:]


def test_making_a_student_draws_nothing_from_the_global_stream():
    teacher = _llama()
    torch.manual_seed(5)
    wanted = torch.rand(1)
    torch.manual_seed(5)
    drop_layers(teacher, 2)
    assert torch.equal(torch.rand(1), wanted)


def test_the_stream_before_the_output_layer_gives_the_logits():
    learner = StudentModel(_llama().inner)
    mask = torch.ones(2, 10, dtype=torch.bool)
    mask[1, 6:] = False
    ids = IDS.repeat(2, 1)
    with torch.no_grad():
        whole = learner(ids, mask).logits
        torch.testing.assert_close(learner.output(learner.compute_hidden_states(ids, mask))[mask], whole[mask])
    assert learner.is_output_linear()


def test_a_model_that_scales_its_logits_is_noticed():
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
    learner = StudentModel(transformers.CohereForCausalLM(config))
    assert not learner.is_output_linear()


def test_what_cannot_be_a_student_is_said():
    with pytest.raises(ModelError, match="supports 32 positions, got 64"):
        StudentModel(_llama().inner, "tiny", 64)
    config = transformers.BertConfig(
        vocab_size=VOCAB, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24
    )
    with pytest.raises(ModelError, match="a student must be a decoder"):
        StudentModel(transformers.BertModel(config), "tiny")
