"""Programs written for PyTorch run when their import lines name `numus.torch`; each asserts what it
learned. Those that compile many kernels are marked slow."""

import pytest
from torch_programs import over_numus, run


def test_only_import_lines_change():
    text = "import torch\nimport torch.nn as nn\nfrom torch import nn\nx = torch.ones(2)\n"
    assert over_numus(text) == (
        "import numus.torch as torch\nimport numus.torch.nn as nn\nfrom numus.torch import nn\n"
        "x = torch.ones(2)\n"
    )


@pytest.mark.parametrize(
    "name",
    [
        "lstm_tagger",
        "word2vec",
        *(
            pytest.param(n, marks=pytest.mark.slow)
            for n in (
                *("ddpm", "dqn", "gan", "idioms", "mixed_precision", "nanogpt", "ppo", "resnet"),
                *("spectral_gan", "translation", "unet", "vae"),
            )
        ),
    ],
)
def test_program_runs(name):
    run(name)
