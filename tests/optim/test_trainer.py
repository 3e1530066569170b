"""Trainer: single steps from closures, whole trainings, and going on where one was interrupted."""

# Closures over the variables of loops are what is tested here.
# ruff: noqa: B007, B023, PT012, PT031
import csv
import functools
import json
import math
import warnings

import numpy as np
import pytest
from PIL import Image

import numus as nm
from numus import data, nn, optim
from numus.errors import NonFiniteError


def make(seed=0, **options):
    nm.random.seed(seed)
    model = nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.1), nn.GELU(), nn.Linear(16, 1))
    opt = optim.AdamW(model.parameters(), lr=0.01)
    schedule = optim.CosineAnnealingLR(opt, 100)
    return optim.Trainer(opt, model, nn.mse_loss, scheduler=schedule, **options)


def batches(seed=0, count=64, size=8):
    rng = np.random.default_rng(seed)
    x = nm.asarray(rng.standard_normal((count, 4), dtype=np.float32))
    dataset = data.TensorDataset(x, x.sum(axis=1, keepdims=True))
    return data.DataLoader(dataset, size, shuffle=True, key=nm.random.key(seed))


def weights(trainer):
    return [p.numpy().copy() for p in trainer.model.parameters()]


def same(a, b):
    return all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


# -- single steps ---------------------------------------------------------------------------------


def by_hand(model, batches, rate=0.1):
    opt = optim.SGD(model.parameters(), lr=rate)
    for x, y in batches:
        opt.zero_grad()
        nn.mse_loss(model(x), y).backward()
        opt.step()


def pairs(count=5):
    rng = np.random.default_rng(1)
    return [
        (nm.asarray(rng.normal(size=(3, 2))), nm.asarray(rng.normal(size=(3, 1))))
        for _ in range(count)
    ]


def fresh():
    nm.random.seed(3)
    return nn.Linear(2, 1, dtype=nm.float64)


def check_closures(steps):
    """Whether `steps(trainer, model, batches)` follows the loop by hand, with few traces."""
    expected = fresh()
    by_hand(expected, pairs())
    model = fresh()
    trainer = optim.Trainer(optim.SGD(model.parameters(), lr=0.1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        steps(trainer, model, pairs())
    np.testing.assert_allclose(model.weight.numpy(), expected.weight.numpy(), rtol=1e-12)
    assert len(trainer._closures._programs) == 1
    assert trainer.step == 5


def test_variables_of_a_loop():
    def steps(trainer, model, batches):
        for x, y in batches:
            trainer.train_step(lambda: nn.mse_loss(model(x), y))

    check_closures(steps)


def test_a_batch_as_one_container():
    def steps(trainer, model, batches):
        for x, y in batches:
            batch = {"x": x, "y": [y]}
            trainer.train_step(lambda: nn.mse_loss(model(batch["x"]), batch["y"][0]))

    check_closures(steps)


def test_arrays_of_numpy():
    def steps(trainer, model, batches):
        for x, y in batches:
            a, b = x.numpy(), y.numpy()
            trainer.train_step(lambda: nn.mse_loss(model(nm.asarray(a)), nm.asarray(b)))

    check_closures(steps)


def test_arguments_with_defaults():
    def steps(trainer, model, batches):
        for x, y in batches:
            trainer.train_step(lambda x=x, y=y: nn.mse_loss(model(x), y))

    check_closures(steps)


def test_attributes_of_an_object():
    class Loop:
        def loss(self):
            return nn.mse_loss(self.model(self.x), self.y)

        def run(self, trainer, batches):
            for self.x, self.y in batches:
                trainer.train_step(self.loss)

    def steps(trainer, model, batches):
        loop = Loop()
        loop.model = model
        loop.run(trainer, batches)

    check_closures(steps)


def test_functions_that_call_functions():
    def steps(trainer, model, batches):
        x = y = None

        def loss():
            return nn.mse_loss(model(x), y)

        def doubled():
            return loss() * 2 / 2

        for x, y in batches:
            trainer.train_step(doubled)

    check_closures(steps)


def test_globals():
    def steps(trainer, model, batches):
        names = {"trainer": trainer, "nn": nn, "model": model, "batches": batches}
        code = "for x, y in batches: trainer.train_step(lambda: nn.mse_loss(model(x), y))"
        exec(code, names)

    check_closures(steps)


def test_parts_of_functions_keep_their_tensors():
    def steps(trainer, model, batches):
        ones = nm.ones((3, 1), dtype=nm.float64)
        loss = functools.partial(lambda w, a, b: nn.mse_loss(a * w, b * w), ones)
        for x, y in batches:
            trainer.train_step(lambda: loss(model(x), y))

    check_closures(steps)


def test_batches_that_stay_alive_are_not_mixed_up():
    model = fresh()
    trainer = optim.Trainer(optim.SGD(model.parameters(), lr=0.0))
    kept = pairs()
    found = [trainer.train_step(lambda: nn.mse_loss(model(x), y)).item() for x, y in kept]
    expected = [nn.mse_loss(model(x), y).item() for x, y in kept]
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    np.testing.assert_allclose(trainer.epoch_avg_loss(), np.mean(expected), rtol=1e-6)
    with pytest.raises(ValueError, match="no step"):
        trainer.epoch_avg_loss()


def test_data_drawn_inside_is_not_traced():
    model = fresh()
    trainer = optim.Trainer(optim.SGD(model.parameters(), lr=0.0))
    rng = np.random.default_rng(0)

    def loss():
        return model(nm.asarray(rng.normal(size=(3, 2)))).square().mean()

    with pytest.warns(RuntimeWarning, match="makes a float64"):
        first = trainer.train_step(loss).item()
    assert trainer.train_step(loss).item() != first


def test_tensors_from_nowhere_are_not_traced():
    model = fresh()
    trainer = optim.Trainer(optim.SGD(model.parameters(), lr=0.0))
    kept = pairs()
    stream = iter(kept)

    def loss():
        return model(next(stream)[0]).square().mean()

    with pytest.warns(RuntimeWarning, match="neither a variable"):
        first = trainer.train_step(loss).item()
    assert trainer.train_step(loss).item() != first


def test_conditions_on_values_are_not_traced():
    model = fresh()
    trainer = optim.Trainer(optim.SGD(model.parameters(), lr=0.1))
    x = nm.ones((3, 2), dtype=nm.float64)

    def loss():
        y = model(x).mean()
        return y if y > 0 else -y

    with pytest.warns(RuntimeWarning, match="Python condition"):
        trainer.train_step(loss)
    trainer.train_step(loss)


def test_numbers_that_differ_are_traced_anew_and_then_no_more():
    model = fresh()
    trainer = optim.Trainer(optim.SGD(model.parameters(), lr=0.0))
    x = nm.ones((3, 2), dtype=nm.float64)
    found = []
    with pytest.warns(RuntimeWarning, match="differ at each call"):
        for factor in range(12):
            found.append(trainer.train_step(lambda: model(x).mean() * factor).item())
    np.testing.assert_allclose(found, np.arange(12) * model(x).mean().item(), rtol=1e-6)


def test_numbers_of_objects_are_seen():
    model = fresh()
    trainer = optim.Trainer(optim.SGD(model.parameters(), lr=0.0))
    kept = pairs()
    closure = lambda: model(kept[trainer.step][0]).square().mean()
    found = [trainer.train_step(closure).item() for _ in kept]
    np.testing.assert_allclose(found, [model(x).square().mean().item() for x, _ in kept], rtol=1e-6)


def test_modes_of_the_model_are_seen():
    model = nn.Sequential(nn.Linear(2, 1), nn.Dropout(0.999))
    trainer = optim.Trainer(optim.SGD(model.parameters(), lr=0.0))
    x = nm.ones((3, 2))
    closure = lambda: nm.abs(model(x)).sum()
    assert trainer.train_step(closure).item() == 0
    model.eval()
    assert trainer.train_step(closure).item() != 0


def test_clipping_accumulation_and_schedule():
    expected, model = fresh(), fresh()
    batches = pairs(4)
    opt = optim.SGD(expected.parameters(), lr=0.1)
    schedule = optim.StepLR(opt, 1, 0.5)
    for i in (0, 2):
        opt.zero_grad()
        for x, y in batches[i : i + 2]:
            (nn.mse_loss(expected(x), y) / 2).backward()
        optim.clip_grad_norm_(expected.parameters(), 0.5)
        opt.step()
        schedule.step()
    opt = optim.SGD(model.parameters(), lr=0.1)
    schedule = optim.StepLR(opt, 1, 0.5)
    trainer = optim.Trainer(opt, scheduler=schedule, max_grad_norm=0.5, accumulate=2)
    for x, y in batches:
        trainer.train_step(lambda: nn.mse_loss(model(x), y))
    np.testing.assert_allclose(model.weight.numpy(), expected.weight.numpy(), rtol=1e-12)
    assert opt.param_groups[0]["lr"] == 0.025


def test_lbfgs_computes_as_often_as_it_needs():
    model = fresh()
    trainer = optim.Trainer(optim.LBFGS(model.parameters(), max_iter=20))
    x, y = pairs(1)[0]
    losses = [trainer.train_step(lambda: nn.mse_loss(model(x), y)).item() for _ in range(3)]
    assert losses[-1] < 1e-3 * losses[0] or losses[-1] < losses[0]


@pytest.mark.parametrize("precision", ["bf16", "f16"])
def test_narrow_products(precision):
    model = nn.Linear(4, 1)
    trainer = optim.Trainer(optim.SGD(model.parameters(), lr=0.1), precision=precision)
    x = nm.random.normal((16, 4))
    y = x.sum(axis=1, keepdims=True)
    losses = [trainer.train_step(lambda: nn.mse_loss(model(x), y)).item() for _ in range(30)]
    assert losses[-1] < 0.1 * losses[0]
    assert (trainer.scaler is not None) == (precision == "f16")


# -- losses that are not finite -------------------------------------------------------------------


def test_a_loss_that_is_not_a_number_names_the_operation():
    model = fresh()
    before = model.weight.numpy().copy()
    trainer = optim.Trainer(optim.SGD(model.parameters(), lr=0.1))
    x = nm.asarray([[-1.0, 2.0]], dtype=nm.float64)
    with pytest.raises(NonFiniteError, match=r"step 1 is nan: log gave 1 NaN .*test_trainer.py"):
        for _ in range(300):
            trainer.train_step(lambda: (model(nm.log(x))).sum())
    assert np.array_equal(model.weight.numpy(), before)  # which it has not spoilt


def test_an_infinite_loss_names_the_operation():
    model = fresh()
    trainer = optim.Trainer(optim.SGD(model.parameters(), lr=0.1))
    x = nm.asarray([[0.0, 2.0]], dtype=nm.float64)
    with pytest.raises(NonFiniteError, match="log gave 1 infinity"):
        trainer.train_step(lambda: (model(x) + nm.log(x)).square().sum())
        trainer.epoch_avg_loss()


def test_gradients_that_are_not_numbers_are_told_apart():
    model = fresh()
    trainer = optim.Trainer(optim.SGD(model.parameters(), lr=0.1))
    x = nm.zeros((1, 2), dtype=nm.float64)
    with pytest.raises(NonFiniteError, match="gradients that were not finite"):
        for _ in range(300):
            trainer.train_step(lambda: nm.sqrt(model(x) * 0).sum())


def test_losses_may_be_left_alone():
    model = fresh()
    trainer = optim.Trainer(optim.SGD(model.parameters(), lr=0.1), check_finite=False)
    x = nm.full((1, 2), nm.nan, dtype=nm.float64)
    trainer.train_step(lambda: model(x).sum())
    assert math.isnan(trainer.epoch_avg_loss())


# -- whole trainings ------------------------------------------------------------------------------


def test_fit_learns_validates_and_leaves_files(tmp_path, capsys):
    trainer = make(metrics={"mae": lambda out, y: nm.abs(out - y).mean()}, max_grad_norm=1.0)
    history = trainer.fit(batches(), 4, validation=batches(1), folder=tmp_path)
    assert [r["epoch"] for r in history] == [1, 2, 3, 4]
    assert history[-1]["val_loss"] < history[0]["val_loss"]
    assert {"loss", "mae", "val_mae", "lr", "items_per_s", "seconds", "memory"} <= set(history[0])
    steps = [json.loads(line) for line in (tmp_path / "steps.jsonl").read_text().splitlines()]
    assert [r["step"] for r in steps] == list(range(1, 33))
    np.testing.assert_allclose(np.mean([r["loss"] for r in steps[:8]]), history[0]["loss"])
    with open(tmp_path / "epochs.csv") as file:
        rows = list(csv.DictReader(file))
    assert float(rows[3]["val_loss"]) == history[3]["val_loss"]
    with Image.open(tmp_path / "curves.png") as image:
        assert image.size == (900 * 3, 420)  # losses, mae, rate
    assert capsys.readouterr().out.count("val_loss") == 4
    trainer.load(tmp_path / "best.ckpt")
    best = min(range(4), key=lambda i: history[i]["val_loss"])
    assert trainer.epoch == best + 1


def test_means_are_weighted_by_examples():
    trainer = make()
    trainer.model.eval()
    loader = batches(count=20)
    losses = [(len(x), nn.mse_loss(trainer.model(x), y).item()) for x, y in batches(count=20)]
    expected = sum(n * value for n, value in losses) / 20
    np.testing.assert_allclose(trainer.evaluate(loader)["loss"], expected, rtol=1e-5)
    assert not trainer.model.training


class Interrupt(optim.Callback):
    def __init__(self, at):
        self.at = at

    def on_step_end(self, trainer):
        if trainer.step == self.at:
            raise KeyboardInterrupt


@pytest.mark.parametrize("at", [5, 8, 13])
def test_resumed_is_the_same_bit_for_bit(tmp_path, at):
    options = {"max_grad_norm": 1.0, "metrics": {"mae": lambda o, y: nm.abs(o - y).mean()}}
    whole = make(**options)
    expected = whole.fit(batches(), 3, validation=batches(1), progress=False, folder=tmp_path / "a")
    common = {"validation": batches(1), "progress": False, "folder": tmp_path / "b"}
    with pytest.raises(KeyboardInterrupt):
        make(**options).fit(
            batches(), 3, callbacks=[Interrupt(at)], checkpoint_every=1 + at % 3, **common
        )
    again = make(seed=99, **options)
    found = again.fit(batches(), 3, callbacks=[optim.Callback()], **common)
    assert same(weights(again), weights(whole))
    timed = {"seconds", "items_per_s", "memory"}
    for a, b in zip(found, expected, strict=True):
        assert {k: v for k, v in a.items() if k not in timed} == {
            k: v for k, v in b.items() if k not in timed
        }
    lines = [(tmp_path / name / "steps.jsonl").read_text() for name in "ab"]
    assert lines[0] == lines[1]


def test_loaders_without_a_state_are_skipped_through(tmp_path):
    loader = list(batches())
    whole = make()
    whole.fit(loader, 2, progress=False)
    with pytest.raises(KeyboardInterrupt):
        make().fit(
            *(loader, 2),
            callbacks=[Interrupt(11)],
            checkpoint_every=3,
            folder=tmp_path,
            progress=False,
        )
    again = make(seed=5)
    again.fit(loader, 2, callbacks=[optim.Callback()], folder=tmp_path, progress=False)
    assert same(weights(again), weights(whole))


def test_a_resumed_log_has_every_step_once(tmp_path):
    def steps():
        return [json.loads(line)["step"] for line in log.read_text().splitlines()]

    log = tmp_path / "steps.jsonl"
    options = {"folder": tmp_path, "checkpoint_every": 5, "progress": False}
    with pytest.raises(KeyboardInterrupt):
        make().fit(batches(), 2, callbacks=[Interrupt(12)], **options)
    assert steps()[:10] == list(range(1, 11))
    with open(log, "a") as file:
        file.write('{"step": 11, "loss"')  # an interrupted line
    before = log.read_bytes()
    trainer = make(seed=1)
    kept = weights(trainer)
    with pytest.raises(ValueError, match="was written with 1 callbacks, not 0"):
        trainer.fit(batches(), 2, **options)
    assert same(weights(trainer), kept)  # all or nothing
    assert (trainer.step, trainer.epoch) == (0, 0)
    assert log.read_bytes() == before
    trainer.fit(batches(), 2, callbacks=[optim.Callback()], **options)
    assert steps() == list(range(1, trainer.step + 1))


def test_steps_before_a_bad_one_are_in_the_log(tmp_path):
    x, y = nm.ones((2, 3)), nm.ones((2, 1))
    model = nn.Linear(3, 1)
    trainer = optim.Trainer(optim.SGD(model.parameters(), lr=0.1), model, nn.mse_loss)
    with pytest.raises(NonFiniteError):
        trainer.fit([(x, y)] * 5 + [(x * np.nan, y)], 1, folder=tmp_path, progress=False)
    assert len((tmp_path / "steps.jsonl").read_text().splitlines()) == 5


def test_words_of_callbacks_are_no_curves(tmp_path):
    class Note(optim.Callback):
        def on_epoch_end(self, trainer, record):
            record["note"] = "good"

    trainer = make()
    trainer.fit(batches(), 1, callbacks=[Note()], folder=tmp_path, progress=False)
    assert "good" in (tmp_path / "epochs.csv").read_text()


def test_more_epochs_go_on_where_it_ended(tmp_path):
    whole = make()
    whole.fit(batches(), 4, progress=False)
    make().fit(batches(), 2, progress=False, folder=tmp_path)
    again = make(seed=7)
    assert len(again.fit(batches(), 4, progress=False, folder=tmp_path)) == 4
    assert same(weights(again), weights(whole))


def test_early_stopping_and_stop():
    trainer = make()
    stopping = optim.EarlyStopping(patience=2, min_delta=1e9)
    assert len(trainer.fit(batches(), 50, callbacks=[stopping], progress=False)) == 3

    class Stop(optim.Callback):
        def on_step_end(self, trainer):
            trainer.stop()

    trainer = make()
    assert trainer.fit(batches(), 50, callbacks=[Stop()], progress=False) == []
    assert trainer.step == 1
    with pytest.raises(KeyError, match="no 'accuracy'; it has"):
        make().fit(
            *(batches(), 2),
            callbacks=[optim.EarlyStopping("accuracy")],
            progress=False,
        )
    with pytest.raises(ValueError, match="min or max"):
        optim.EarlyStopping(mode="up")


def test_callbacks_are_called_in_order():
    seen = []

    class Watch(optim.Callback):
        def on_fit_begin(self, trainer):
            seen.append("fit")

        def on_epoch_begin(self, trainer):
            seen.append("epoch")

        def on_step_end(self, trainer):
            seen.append(trainer.step)

        def on_epoch_end(self, trainer, record):
            seen.append("end")
            record["mine"] = 1

        def on_fit_end(self, trainer):
            seen.append("done")

    history = make().fit(list(batches(count=16)), 2, callbacks=[Watch()], progress=False)
    assert seen == ["fit", "epoch", 1, 2, "end", "epoch", 3, 4, "end", "done"]
    assert history[0]["mine"] == 1


def test_batches_of_any_kind():
    model = nn.Linear(4, 2)

    def compute(model, batch):
        scores = model(batch["x"])
        right = (nm.argmax(scores, axis=-1) == batch["y"]).mean(dtype=nm.float32)
        return nn.cross_entropy(scores, batch["y"]), {"accuracy": right}

    rng = np.random.default_rng(0)
    x = rng.standard_normal((40, 4), dtype=np.float32)
    loader = [
        {"x": x[i : i + 8], "y": (x[i : i + 8, 0] > 0).astype(np.int64)} for i in range(0, 40, 8)
    ]
    trainer = optim.Trainer(optim.Adam(model.parameters(), lr=0.05), model, compute=compute)
    history = trainer.fit(loader, 20, progress=False)
    assert history[-1]["accuracy"] > 0.9
    assert trainer.evaluate(loader)["accuracy"] > 0.9


def test_averages_are_what_is_validated():
    trainer = make()
    trainer.ema = trainer._step.ema = optim.EMA(trainer.model, decay=0.5)
    trainer.fit(batches(), 1, progress=False)
    raw = weights(trainer)
    with trainer.ema.applied():
        trainer.model.eval()
        x, y = next(iter(batches(1, size=64)))
        expected = nn.mse_loss(trainer.model(x), y).item()
    np.testing.assert_allclose(trainer.evaluate([(x, y)])["loss"], expected, rtol=1e-5)
    assert same(weights(trainer), raw)


def test_plateaus_are_told_of_epochs():
    trainer = make()
    plateau = optim.ReduceLROnPlateau(trainer.optimizer, patience=0, threshold=1e9)
    trainer = optim.Trainer(trainer.optimizer, trainer.model, nn.mse_loss, scheduler=plateau)
    history = trainer.fit(batches(), 3, progress=False)
    assert history[2]["lr"] < history[0]["lr"]


def test_models_that_look_at_values_run_as_they_are():
    class Looks(nn.Module):
        def __init__(self):
            self.layer = nn.Linear(4, 1)

        def forward(self, x):
            y = self.layer(x)
            return y if y.mean() > 0 else y * 2

    model = Looks()
    trainer = optim.Trainer(optim.SGD(model.parameters(), lr=0.01), model, nn.mse_loss)
    with pytest.warns(RuntimeWarning, match="not traced"):
        trainer.fit(batches(), 1, progress=False)


def test_what_is_wrong_is_said():
    opt = optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1)
    with pytest.raises(ValueError, match="needs a model"):
        optim.Trainer(opt).fit([], 1)
    with pytest.raises(ValueError, match="gave no batch"):
        make().fit([], 1, progress=False)
    with pytest.raises(TypeError, match=r"inputs\.\.\., targets"):
        make().fit([nm.ones((2, 4))], 1, progress=False)
    with pytest.raises(TypeError, match="one number, not of shape"):
        trainer = optim.Trainer(opt, nn.Linear(4, 1), lambda out, y: out - y)
        trainer.fit(batches(), 1, progress=False)
    with pytest.raises(ValueError, match="checkpoint_every"):
        make().fit(batches(), 1, checkpoint_every=2, progress=False)
    with pytest.raises(ValueError, match="not both"):
        optim.Trainer(opt, loss=nn.mse_loss, compute=lambda m, b: b)


def test_events_for_tensorboard(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    trainer = make()
    trainer.fit(batches(), 2, folder=tmp_path, progress=False)
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert len(events.Scalars("loss")) == 16
    found = [e.value for e in events.Scalars("epoch/loss")]
    np.testing.assert_allclose(found, [r["loss"] for r in trainer.history], rtol=1e-6)
