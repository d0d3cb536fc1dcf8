"""make bench: what it counts, what it says, and that contestants compute the same."""

import itertools
import json
import sys
import tomllib
from xml.etree import ElementTree as ET

import pytest
import torch
from tools.bench import children, lessons, page, peer_models, peers, picture, tokenising, trials, turns, words
from tools.bench.families import FAMILIES
from tools.bench.findings import Bar, Finding, Results, Table, results_of
from tools.bench.startup import imports_torch
from tools.bench.step import PURPOSES, purpose_of

WORDS = "we will meet our duty to the people and keep the peace of this great land with hope and work".split()
ABOUT = {
    "processor": "a processor",
    "cores": 2,
    "memory_gb": 8.0,
    "system": "Linux",
    "python": "3.11",
    "versions": {"torch": "2"},
    "load": 0.1,
    "day": "2026-11-16",
    "corpus": "speeches",
    "short": False,
    "rounds": None,
}


@pytest.fixture(scope="module")
def speeches(tmp_path_factory):
    """A corpus in the form of the course's files, small enough for a step to take a moment."""
    folder = tmp_path_factory.mktemp("speeches")
    rows = [" ".join(itertools.islice(itertools.cycle(WORDS), at, at + 5 + at % 9)) + " ." for at in range(60)]
    for name in ("train_LM", "test_LM_obama", "test_LM_hbush", "test_LM_wbush"):
        (folder / f"{name}.txt").write_text("\n".join(rows if name == "train_LM" else rows[:12]) + "\n")
    for name, some in (("train_CLS", rows), ("test_CLS", rows[5:20])):
        lines = [f"{at % 3}\t{row}" for at, row in enumerate(some)]
        (folder / f"{name}.tsv").write_text("\n".join(lines) + "\n")
    return str(folder)


@pytest.fixture(scope="module")
def decoder(speeches, tmp_path_factory):
    """What peers of the decoder are given: one seed of four steps."""
    folder = tmp_path_factory.mktemp("decoder")
    raw = lessons.decoder(speeches, seeds=1, steps=4, evaluate=2)
    lessons.write(raw, folder)
    return raw, lessons.Given.read(folder)


def our_losses(raw, folder, steps):
    """Our losses of the first steps, from the steps of the real training."""
    _, training = lessons.begun(raw, 0, folder)
    training.model.train()
    for step in range(steps):
        training._train_step(step)
    return [loss.item() for loss in training._pending_losses]


def their_losses(model, given, steps):
    optimizer, found = peers.adam(model, given.shape.rate), []
    for step in given.batches(0)[:steps]:
        loss = peers.loss_of(model, step)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item())
    return found


def test_gpt2_has_our_losses_step_by_step(decoder, tmp_path):
    raw, given = decoder
    theirs = their_losses(peer_models.gpt2(given.shape, given.start(0)).train(), given, 4)
    assert theirs == pytest.approx(our_losses(raw, tmp_path, 4), abs=1e-4)
    assert theirs[0] - theirs[-1] > 1e-3  # it has learned something, so that later losses say more than the first


def test_gpt2_trains_as_many_parameters_as_ours(decoder, tmp_path):
    raw, given = decoder
    model, _ = lessons.begun(raw, 0, tmp_path)
    trained = sum(p.numel() for p in peer_models.gpt2(given.shape, given.start(0)).parameters() if p.requires_grad)
    assert trained == sum(p.numel() for p in model.parameters())


@pytest.mark.filterwarnings("ignore")  # of libraries, about themselves
def test_x_transformers_has_our_loss_once_the_bias_that_it_lacks_is_gone(decoder, tmp_path):
    raw, given = decoder
    model, training = lessons.begun(raw, 0, tmp_path)
    for layer in model.layers:
        torch.nn.init.zeros_(layer.attention.output.bias)
    ours = training.objective.loss(model, training.schedule.batch(0)).item()
    peer = peer_models.x_transformers(given.shape, given.start(0))
    assert peers.loss_of(peer, given.batches(0)[0]).item() == pytest.approx(ours, abs=1e-4)
    fewer = sum(p.numel() for p in model.parameters()) - sum(p.numel() for p in peer.parameters())
    assert fewer == 832  # as the table of differences says


def test_torch_encoder_has_our_losses_step_by_step(speeches, tmp_path):
    raw = lessons.classifier(speeches, seeds=1, epochs=1)
    lessons.write(raw, tmp_path / "given")
    given = lessons.Given.read(tmp_path / "given")
    assert any(not mask.all() for _, _, mask in given.batches(0))  # there is padding to be masked
    theirs = their_losses(peer_models.encoder(given.shape, given.start(0)).train(), given, 4)
    assert theirs == pytest.approx(our_losses(raw, tmp_path / "ours", 4), abs=1e-4)


@pytest.mark.filterwarnings("ignore")  # of libraries, about themselves
def test_trainer_takes_the_steps_of_the_plain_loop(decoder):
    _, given = decoder
    plain, trainer = peers.train("gpt2", given, [0]).losses[0], peers.train("trainer", given, [0]).losses[0]
    assert plain.keys() == trainer.keys() == {0, 2, 4}
    # It takes the mean of a text's batches; of one that is a single batch that is the mean over its tokens.
    for step, name in itertools.product(plain, ("obama", "hbush", "wbush")):
        assert trainer[step][name] == pytest.approx(plain[step][name], abs=1e-4)
    assert all(trainer[step]["train"] == pytest.approx(plain[step]["train"], abs=0.02) for step in plain)
    assert plain[0]["obama"] - plain[4]["obama"] > 0.1


def test_peers_are_given_the_batches_of_our_schedule(decoder, tmp_path):
    raw, given = decoder
    _, training = lessons.begun(raw, 0, tmp_path)
    for step, (inputs, labels, _) in enumerate(given.batches(0)):
        assert torch.equal(inputs, training.schedule.batch(step).input_ids)
        assert torch.equal(labels, training.schedule.batch(step).labels)


def test_the_experiment_file_says_what_was_asked(speeches):
    for raw in (lessons.decoder(speeches, seeds=2, steps=4, evaluate=2), lessons.classifier("sotu", seeds=1, epochs=3)):
        assert tomllib.loads(lessons.toml(raw)) == raw


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_contest_in_processes_from_start_to_end(speeches, tmp_path):
    from tools.bench.findings import How
    from tools.bench.training import RIVALS

    how = How(tmp_path, speeches, cores=1, short=True)
    raw = lessons.decoder(speeches, seeds=2, steps=4, evaluate=2)
    found = list(trials.contest(raw, RIVALS[:1], how, 1, tmp_path / "training"))
    rates = [one for one in found if isinstance(one, Finding) and one.theirs is not None]
    assert [one.figure == pytest.approx(one.ours / one.theirs) for one in rates] == [True, True]
    (agreement,) = [one for one in found if isinstance(one, Finding) and one.kind == "nats"]
    assert agreement.holds


def test_contestants_take_turns_and_the_best_turn_counts():
    order, clock = [], iter([0.4, 0.0, 0.4])

    def slow_at_first():
        order.append("a")
        turns.time.sleep(next(clock))
        return len(order)

    best = turns.take_turns({"a": slow_at_first, "b": lambda: order.append("b")}, rounds=3, warm=False)
    assert order == ["a", "b"] * 3
    assert best["a"].wall < 0.4
    assert best["a"].answer == 3  # of the quickest turn


def test_who_is_only_shown_has_one_turn():
    order = []
    turns.take_turns({name: lambda name=name: order.append(name) for name in "ab"}, 3, warm=False, once={"b"})
    assert order == ["a", "b", "a", "a"]


@pytest.mark.parametrize(
    ("figure", "bar", "holds"),
    [
        (1.7, Bar(1.6), True),
        (1.5, Bar(1.6), False),
        (8.9, Bar(9, at_most=True), True),
        (9.1, Bar(9, at_most=True), False),
        (9.1, None, None),
        (0.0, Bar(0, at_most=True), True),
        (1.0, Bar(0, at_most=True), False),
        (0.0, Bar(1e-4, at_most=True), True),
    ],
)
def test_a_bar_holds_or_does_not(figure, bar, holds):
    finding = Finding("speed", 2.0, "trials/h", 1.0, "peer", figure, bar=bar)
    assert finding.holds is holds
    assert words.cells(finding)[-1] == {True: "yes", False: "NO", None: ""}[holds]
    if bar is not None:
        assert (picture.margin(finding) >= 1) is holds


def results():
    made = Results(dict(ABOUT))
    made.add(Finding("speed", 2.0, "trials/h", 1.0, "peer", 2.0, bar=Bar(1.6), on_processor=1.9))
    made.add(Finding("memory", 500.0, "MB", 1000.0, "plain", 0.5, "share", Bar(1 / 3, at_most=True)))
    made.add(Table("Where the time goes", ["what", "ms"], [["norms", "1.0"]], "One thread."))
    return made


def test_results_come_back_from_json():
    made = results()
    again = results_of(json.loads(json.dumps(made.to_dict())))
    assert again == made
    assert [one["holds"] for one in made.to_dict()["findings"]] == [True, False]


def test_the_page_shows_every_family_and_which_promises_fail():
    assert page.FAMILIES.keys() == FAMILIES.keys()
    text = page.page(dict.fromkeys(FAMILIES, results()))
    for title, _ in page.FAMILIES.values():
        assert f"\n## {title}\n" in text
    assert f"Of {2 * len(FAMILIES)} promises, {len(FAMILIES)} hold." in text
    assert "| memory | 500 MB | plain: 1,000 | 50.0 % | at most 33 % | **NO** |" in text
    assert "| norms | 1.0 |" in text
    assert "a processor, 2 cores" in text


def test_the_picture_is_drawn_and_says_in_words_what_it_shows(tmp_path):
    found = {"memory": results()}
    picture.write(found, tmp_path / "made" / "picture.svg")
    drawn = ET.parse(tmp_path / "made" / "picture.svg").getroot()
    assert drawn.tag.endswith("svg") and "2.00 x, wanted at least 1.6 x" in "".join(drawn.itertext())
    assert "memory: speed: 2.00 x, wanted at least 1.6 x." in picture.chart(found).alt_text


SHAPE = lessons.Shape(5755, None, 256, 4, 2, 1024, 64, 1e-3, 500, 100)


@pytest.mark.parametrize(
    ("name", "shapes", "purpose"),
    [
        ("aten::addmm", [[5755], [128, 256], [256, 5755]], "vocabulary: products"),
        ("aten::_softmax", [[128, 5755], [], []], "vocabulary: softmax and loss"),
        ("aten::mul_", [[128, 5755], [5755]], "vocabulary: softmax and loss"),
        ("aten::addmv_", [[5755], [5755, 128], [128], [], []], "vocabulary: softmax and loss"),
        ("aten::index_add_", [[5755, 256], [], [1024], [1024, 256], []], PURPOSES[2]),
        ("aten::fill_", [[5755, 256], []], "vocabulary: tables of its size zeroed, added, scaled"),
        ("aten::embedding", [[5755, 256], [16, 64]], "embedding and positions"),
        # There are as many tokens as hidden units, 1,024: what is left without the tokens decides.
        ("aten::mm", [[256, 1024], [1024, 256]], "attention: projections"),
        ("aten::mm", [[1024, 256], [256, 256]], "attention: projections"),
        ("aten::addmm", [[1024], [1024, 256], [256, 1024]], "feed-forward"),
        ("aten::mm", [[1024, 1024], [1024, 256]], "feed-forward"),
        ("aten::threshold_backward", [[16, 64, 1024], [16, 64, 1024], []], "feed-forward"),
        ("aten::native_layer_norm", [[16, 64, 256]], "norms"),
        ("aten::_fused_adam_", [[], []], "optimizer"),
        ("aten::_scaled_dot_product_flash_attention_for_cpu", [[16, 2, 64, 128]], "attention: scores and values"),
        ("aten::add", [[16, 64, 256], [16, 64, 256]], PURPOSES[-1]),
    ],
)
def test_an_operation_is_known_by_its_shapes(name, shapes, purpose):
    assert purpose in PURPOSES
    assert purpose_of(name, shapes, SHAPE, tokens=1024) == purpose


def test_a_peak_is_what_the_work_adds():
    """In a process of its own, as the bench does it: an old one has room left from before, and takes that."""
    size = 60_000_000
    code = (
        "import json, torch; from tools.bench import alone; "
        f"print(json.dumps(alone.peak_of(lambda: torch.ones({size // 4}))))"
    )
    found = children.answer(children.run([sys.executable, "-c", code]))
    assert found["bytes"] == pytest.approx(size, rel=0.15)


def test_differences_are_the_largest_of_seeds_and_texts():
    ours = {"0": {"0": {"a": 1.0, "b": 2.0, "only ours": 9.0}}, "1": {"0": {"a": 1.0}, "5": {"a": 0.5}}}
    theirs = {"0": {"0": {"a": 1.25, "b": 2.0}}, "1": {"0": {"a": 0.5}, "5": {"a": 0.5}}}
    assert trials.apart(ours, theirs) == {0: 0.5, 5: 0.0}


def test_no_line_of_the_large_text_is_like_another():
    lines = list(itertools.islice(tokenising.changed_rows(["we will", "our duty"]), 200))
    assert len(set(lines)) == 200
    assert lines == list(itertools.islice(tokenising.changed_rows(["we will", "our duty"]), 200))


def test_help_comes_without_torch():
    assert not imports_torch(["--help"])
