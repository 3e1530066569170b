"""Models by name: weights from keys, modes, names of state dicts, errors."""

import numpy as np
import pytest

import numus as nm
from numus.errors import ShapeError
from numus.models import blocks, registry


@pytest.fixture(autouse=True)
def reference_device():
    """NumPy: nothing has to be compiled for a few small models."""
    before = nm.default_device()
    nm.set_default_device(nm.device("reference"))
    yield
    nm.set_default_device(before)


def small(**options):
    return nm.models.ResNet(nm.models.BasicBlock, (1, 1), 5, **options)


def test_every_listed_model_has_a_factory():
    names = nm.models.list_models()
    assert len(names) == len(set(names)) > 40
    for module, listed in registry.FACTORIES.items():
        for name in listed.split():
            assert getattr(nm.models, name).__module__ == f"numus.models.{module}"


def test_names_that_are_not_there():
    with pytest.raises(ValueError, match="no model 'resnet51'; near it: resnet50"):
        nm.models.create("resnet51")
    with pytest.raises(AttributeError, match="resnet51"):
        nm.models.resnet51  # noqa: B018


def test_weights_follow_the_key():
    build = registry.factory(small)
    nm.random.seed(5)
    first = build(key=nm.random.key(1)).state_dict()
    after = nm.random.uniform((3,)).tolist()
    nm.random.seed(5)
    assert nm.random.uniform((3,)).tolist() == after  # the generator went on where it was
    second = build(key=nm.random.key(1)).state_dict()
    other = build(key=nm.random.key(2)).state_dict()
    assert all((first[n].numpy() == second[n].numpy()).all() for n in first)
    assert (first["conv1.weight"].numpy() != other["conv1.weight"].numpy()).all()
    with pytest.raises(ShapeError, match=r"key has shape \(2,\)"):
        build(key=nm.random.split(nm.random.key(0), 3))


def test_channels_of_the_stem():
    model = small(in_channels=1).eval()
    assert model(nm.zeros((2, 1, 24, 24))).shape == (2, 5)


def test_training_moves_statistics_and_evaluation_does_not():
    model = small()
    x = nm.random.normal((4, 3, 24, 24), key=nm.random.key(0))
    before = model.bn1.running_mean.numpy().copy()
    model(x)
    after = model.bn1.running_mean.numpy().copy()
    assert (before != after).all()
    model.eval()
    a = model(x[:1]).numpy()
    np.testing.assert_allclose(a, model(x).numpy()[:1], rtol=1e-4, atol=1e-5)
    assert (model.bn1.running_mean.numpy() == after).all()


def test_residual_blocks_that_begin_as_the_identity():
    model = small(zero_init_residual=True)
    assert not model.layer1[0].bn2.weight.numpy().any()
    assert model.layer1[0].bn1.weight.numpy().all()


def test_stochastic_depth():
    layer = blocks.StochasticDepth(0.5)
    x = nm.ones((400, 2, 3))
    y = layer(x, key=nm.random.key(0)).numpy()
    assert set(np.unique(y)) == {0.0, 2.0}
    assert (y == y[:, :1, :1]).all()  # whole examples
    assert 140 < (y[:, 0, 0] > 0).sum() < 260
    assert (layer(x, key=nm.random.key(0)).numpy() == y).all()
    assert layer.eval()(x) is x
    with pytest.raises(ValueError, match="between 0 and 1"):
        blocks.StochasticDepth(1.5)


def test_dropout_and_depth_follow_the_generator():
    model = nm.models.SwinTransformer(
        *(2, 8, (2,), (2,), 4), dropout=0.2, attention_dropout=0.2, stochastic_depth_prob=0.5
    )
    x = nm.random.normal((2, 3, 8, 8), key=nm.random.key(0))
    drawn = []
    for seed in (1, 1, 2):
        nm.random.seed(seed)
        drawn.append(model(x).numpy())
    assert (drawn[0] == drawn[1]).all()
    assert (drawn[0] != drawn[2]).any()
    model.eval()
    assert (model(x).numpy() == model(x).numpy()).all()


def test_earlier_names_of_weights():
    model = nm.models.VisionTransformer(8, 4, 1, 2, 8, 12, num_classes=3)
    state = model.state_dict()
    old = {
        n.replace("mlp.0", "mlp.linear_1").replace("mlp.3", "mlp.linear_2"): v * 2
        for n, v in state.items()
    }
    model.load_state_dict(old)
    wanted = state["encoder.layers.encoder_layer_0.mlp.0.weight"].numpy() * 2
    assert (model.encoder.layers[0].mlp[0].weight.numpy() == wanted).all()
    dense = nm.models.DenseNet(4, (1,), 8, num_classes=3)
    state = dense.state_dict()
    old = {n.replace("norm1", "norm.1").replace("conv2", "conv.2"): v for n, v in state.items()}
    assert old.keys() != state.keys()
    dense.load_state_dict(old)
    with pytest.raises(ValueError, match=r"missing: .*classifier\.weight"):
        dense.load_state_dict({n: v for n, v in old.items() if "classifier" not in n})


def test_sizes_that_do_not_fit():
    vit = nm.models.VisionTransformer(8, 4, 1, 2, 8, 12, num_classes=3)
    with pytest.raises(ShapeError, match="8 × 8 pixels"):
        vit(nm.zeros((1, 3, 16, 16)))
    with pytest.raises(ValueError, match="multiple of patch_size=5"):
        nm.models.VisionTransformer(8, 5, 1, 2, 8, 12)
    with pytest.raises(ValueError, match="Bottleneck takes others"):
        small(groups=2)
    with pytest.raises(ValueError, match="version is 1 or 2"):
        nm.models.SwinTransformer(2, 8, (1,), (2,), 4, version=3)


def test_clip_masks_padding_and_learns_pairs():
    text = nm.models.CLIPTower(8, 16, 1, 2, vocab_size=20, eos_token_id=19)
    vision = nm.models.CLIPTower(8, 16, 1, 2, image_size=8, patch_size=4)
    model = nm.models.CLIP(text, vision, projection_dim=6)
    tokens = np.array([[3, 5, 19, 0], [3, 19, 0, 0]])
    plain = model.get_text_features(tokens[:, :3]).numpy()
    masked = model.get_text_features(tokens, tokens > 0).numpy()
    np.testing.assert_allclose(masked, plain, rtol=1e-5, atol=1e-6)
    with pytest.raises(ShapeError, match="77 is the most"):
        model.get_text_features(np.full((1, 78), 3))
    output = model(tokens, np.ones((2, 3, 8, 8), np.float32))
    loss = nm.models.clip_loss(output)
    loss.backward()
    assert loss.item() == pytest.approx(np.log(2), abs=0.5)
    assert model.logit_scale.grad is not None
