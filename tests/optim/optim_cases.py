"""Optimisers and schedules that are compared with PyTorch, by name and arguments.

`tests/fixtures/make_torch_fixtures.py` runs them there; gradients are drawn anew on both sides.
"""

import zlib

import numpy as np

SHAPES = ((3, 4), (4,), (2, 3, 2), ())
STEPS = 10

OPTIMISERS = {
    "SGD": ("SGD", {"lr": 0.1}),
    "SGD-momentum": ("SGD", {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}),
    "SGD-nesterov": ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    "SGD-dampening": ("SGD", {"lr": 0.1, "momentum": 0.8, "dampening": 0.3, "maximize": True}),
    "Adam": ("Adam", {"lr": 0.02}),
    "Adam-all": ("Adam", {"betas": (0.8, 0.95), "weight_decay": 0.1, "amsgrad": True}),
    "Adam-zero": ("Adam", {"betas": (0.0, 0.9), "eps": 1e-3}),
    "AdamW": ("AdamW", {"lr": 0.02}),
    "AdamW-amsgrad": ("AdamW", {"lr": 0.02, "weight_decay": 0.3, "amsgrad": True}),
    "NAdam": ("NAdam", {"lr": 0.02}),
    "NAdam-all": (
        "NAdam",
        {"betas": (0.8, 0.95), "weight_decay": 0.1, "decoupled_weight_decay": True},
    ),
    "RAdam": ("RAdam", {"lr": 0.02}),
    "RAdam-all": ("RAdam", {"lr": 0.02, "betas": (0.8, 0.6), "weight_decay": 0.1, "eps": 1e-3}),
    "Adamax": ("Adamax", {"lr": 0.02}),
    "Adamax-all": ("Adamax", {"betas": (0.8, 0.95), "weight_decay": 0.1, "maximize": True}),
    "Adagrad": ("Adagrad", {"lr": 0.1}),
    "Adagrad-all": (
        "Adagrad",
        {"lr_decay": 0.1, "weight_decay": 0.1, "initial_accumulator_value": 0.2},
    ),
    "RMSprop": ("RMSprop", {}),
    "RMSprop-all": (
        "RMSprop",
        {"alpha": 0.9, "momentum": 0.8, "centered": True, "weight_decay": 0.1, "eps": 1e-3},
    ),
    "Adadelta": ("Adadelta", {}),
    "Adadelta-all": ("Adadelta", {"lr": 0.7, "rho": 0.8, "weight_decay": 0.1}),
    "SGD-up": ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True, "maximize": True}),
    "Adam-up": ("Adam", {"amsgrad": True, "maximize": True, "eps": 1e-2}),
    "Adam-decoupled": ("Adam", {"weight_decay": 0.1, "decoupled_weight_decay": True}),
    "AdamW-hints": ("AdamW", {"lr": 0.02, "foreach": False, "maximize": True}),
    "NAdam-up": ("NAdam", {"momentum_decay": 0.1, "weight_decay": 0.1, "maximize": True}),
    "RAdam-decoupled": (
        "RAdam",
        {"lr": 0.02, "weight_decay": 0.1, "decoupled_weight_decay": True, "maximize": True},
    ),
    "Adagrad-up": ("Adagrad", {"lr": 0.1, "eps": 0.1, "maximize": True}),
    "RMSprop-centered": ("RMSprop", {"alpha": 0.5, "centered": True, "maximize": True}),
    "RMSprop-momentum": ("RMSprop", {"momentum": 0.8, "weight_decay": 0.1}),
    "Adadelta-up": ("Adadelta", {"rho": 0.5, "eps": 0.1, "maximize": True}),
    "Adafactor-up": ("Adafactor", {"beta2_decay": -0.5, "maximize": True}),
    "Adafactor": ("Adafactor", {}),
    "Rprop": ("Rprop", {}),
    "Rprop-all": ("Rprop", {"lr": 0.1, "etas": (0.4, 1.5), "step_sizes": (0.01, 0.3)}),
    "Rprop-up": ("Rprop", {"lr": 0.05, "maximize": True}),
    "ASGD": ("ASGD", {}),
    "ASGD-all": ("ASGD", {"lr": 0.1, "lambd": 0.1, "alpha": 0.5, "t0": 3, "weight_decay": 0.1}),
    "ASGD-up": ("ASGD", {"lr": 0.05, "t0": 0.0, "maximize": True}),
    "Adafactor-all": ("Adafactor", {"lr": 0.3, "weight_decay": 0.1, "d": 1.5, "eps": (1e-4, 0.1)}),
}


def start(i: int) -> np.ndarray:
    return _drawn(f"start/{i}", SHAPES[i])


def gradient(step: int, i: int) -> np.ndarray:
    return _drawn(f"gradient/{step}/{i}", SHAPES[i])


def _drawn(name: str, shape: tuple[int, ...]) -> np.ndarray:
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    return (rng.random(shape) * 2 - 1).astype(np.float32)


# name: (class, arguments, steps)
SCHEDULES = {
    "StepLR": ("StepLR", {"step_size": 3, "gamma": 0.5}, 12),
    "MultiStepLR": ("MultiStepLR", {"milestones": [2, 5, 5, 9], "gamma": 0.5}, 12),
    "ExponentialLR": ("ExponentialLR", {"gamma": 0.9}, 12),
    "ConstantLR": ("ConstantLR", {"factor": 0.5, "total_iters": 4}, 8),
    "LinearLR": ("LinearLR", {"start_factor": 0.1, "total_iters": 6}, 10),
    "PolynomialLR": ("PolynomialLR", {"total_iters": 6, "power": 2.0}, 9),
    "CosineAnnealingLR": ("CosineAnnealingLR", {"T_max": 5, "eta_min": 0.01}, 23),
    "Restarts": ("CosineAnnealingWarmRestarts", {"T_0": 4, "eta_min": 0.01}, 14),
    "Restarts-2": ("CosineAnnealingWarmRestarts", {"T_0": 3, "T_mult": 2}, 25),
    "OneCycleLR": ("OneCycleLR", {"max_lr": 0.5, "total_steps": 20}, 19),
    "OneCycleLR-3": (
        "OneCycleLR",
        {"max_lr": 0.5, "epochs": 5, "steps_per_epoch": 4, "three_phase": True},
        19,
    ),
    "OneCycleLR-linear": (
        "OneCycleLR",
        {"max_lr": 0.5, "total_steps": 20, "anneal_strategy": "linear", "cycle_momentum": False},
        19,
    ),
    "CyclicLR": ("CyclicLR", {"base_lr": 0.1, "max_lr": 0.5, "step_size_up": 4}, 20),
    "CyclicLR-2": (
        "CyclicLR",
        {"base_lr": 0.1, "max_lr": 0.5, "step_size_up": 3, "step_size_down": 5,
         "mode": "triangular2"},
        20,
    ),
    "CyclicLR-exp": (
        "CyclicLR",
        {"base_lr": 0.1, "max_lr": 0.5, "step_size_up": 3, "mode": "exp_range", "gamma": 0.9},
        20,
    ),
}  # fmt: skip


def special_schedules(optim, optimizer):
    """Schedules that are made of functions or of other schedules."""
    s = optim.lr_scheduler
    return {
        "LambdaLR": lambda: s.LambdaLR(optimizer, lambda e: 0.9**e / (1 + e)),
        "MultiplicativeLR": lambda: s.MultiplicativeLR(optimizer, lambda e: 0.8 + 0.01 * e),
        "SWALR": lambda: optim.swa_utils.SWALR(optimizer, 0.05, anneal_epochs=6),
        "SWALR-linear": lambda: optim.swa_utils.SWALR(optimizer, 0.7, 4, "linear"),
        "SWALR-once": lambda: optim.swa_utils.SWALR(optimizer, 0.05, anneal_epochs=0),
        "Sequential": lambda: s.SequentialLR(
            optimizer,
            [
                s.LinearLR(optimizer, 0.1, total_iters=4),
                s.CosineAnnealingLR(optimizer, 6),
                s.ExponentialLR(optimizer, 0.5),
            ],
            [4, 10],
        ),
        "Cyclic-lists": lambda: s.CyclicLR(optimizer, [0.01], [0.3], step_size_up=4),
        "Cyclic-scaled": lambda: s.CyclicLR(
            optimizer, 0.01, 0.3, step_size_up=3, scale_fn=lambda t: 0.9**t, scale_mode="iterations"
        ),
        "OneCycle-all": lambda: s.OneCycleLR(
            *(optimizer, [0.5]),
            epochs=4,
            steps_per_epoch=5,
            pct_start=0.4,
            three_phase=True,
            base_momentum=0.8,
            max_momentum=0.97,
            div_factor=10.0,
            final_div_factor=100.0,
        ),
        "Warmed": lambda: s.SequentialLR(
            optimizer,
            [
                s.ConstantLR(optimizer, 0.1, total_iters=2),
                s.CosineAnnealingWarmRestarts(optimizer, 3, T_mult=2, eta_min=0.01),
            ],
            [4],
        ),
        "Chained": lambda: s.ChainedScheduler(
            [s.LinearLR(optimizer, 0.5, total_iters=4), s.ExponentialLR(optimizer, 0.9)]
        ),
    }


# rates of a schedule that goes on from a step in the middle: name: (class, arguments)
GOING_ON = {
    "StepLR": ("StepLR", {"step_size": 3}),
    "MultiStepLR": ("MultiStepLR", {"milestones": [3, 6]}),
    "ExponentialLR": ("ExponentialLR", {"gamma": 0.9}),
    "CosineAnnealingLR": ("CosineAnnealingLR", {"T_max": 9}),
    "LinearLR": ("LinearLR", {"total_iters": 7}),
    "ConstantLR": ("ConstantLR", {}),
    "PolynomialLR": ("PolynomialLR", {"total_iters": 9}),
    "Restarts": ("CosineAnnealingWarmRestarts", {"T_0": 4}),
}


def going_on(optim, parameter, name):
    """Eight rates after step 3, of groups with an initial rate."""
    call, args = GOING_ON[name]
    optimizer = optim.SGD([{"params": [parameter], "initial_lr": 0.4}], lr=0.123)
    scheduler = getattr(optim.lr_scheduler, call)(optimizer, last_epoch=3, **args)
    rates = []
    for _ in range(8):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return np.array(rates)


MEASURES = [5.0, 4.0, 4.0, 3.99999, 4.1, 4.2, 3.0, 3.0, 3.0, 3.0, 3.0, 3.0, 3.0, 2.9, 3.0, 3.0, 3.0]
PLATEAUS = {
    "Plateau": {"patience": 1, "factor": 0.5},
    "Plateau-abs": {"patience": 0, "factor": 0.5, "threshold": 0.5, "threshold_mode": "abs"},
    "Plateau-eps": {"patience": 1, "factor": 0.5, "eps": 0.05, "min_lr": [0.01]},
    "Plateau-max-abs": {"mode": "max", "patience": 1, "threshold_mode": "abs", "threshold": 0.3},
    "Plateau-max": {"mode": "max", "patience": 2, "cooldown": 2, "factor": 0.5, "min_lr": 0.05},
}


def valley(xp, x):
    """Rosenbrock's valley in several dimensions."""
    return ((1 - x[:-1]) ** 2).sum() + 20 * ((x[1:] - x[:-1] ** 2) ** 2).sum()


LBFGS = {
    "LBFGS": {"lr": 0.05, "max_iter": 4},
    "LBFGS-short": {"lr": 0.05, "max_iter": 5, "history_size": 2},
    "LBFGS-few": {"max_iter": 5, "max_eval": 7, "line_search_fn": "strong_wolfe"},
    "LBFGS-lenient": {"lr": 0.1, "tolerance_grad": 1e-1, "tolerance_change": 1e-2},
    "LBFGS-wolfe": {"lr": 1.0, "max_iter": 4, "line_search_fn": "strong_wolfe"},
}
