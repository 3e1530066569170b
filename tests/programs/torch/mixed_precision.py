"""torch.compile, autocast, gradient scaling and accumulation, averages of weights, copies."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.cuda.amp import autocast as cuda_autocast
from torch.amp import GradScaler, autocast
from contextlib import nullcontext
from dataclasses import dataclass
import math, time


@dataclass
class Config:
    steps: int = 30
    lr: float = 3e-3
    min_lr: float = 3e-4
    warmup: int = 5
    accum: int = 2
    dtype: str = "bfloat16"
    compile: bool = True


cfg = Config()
torch.manual_seed(1337)
device_type = "cuda" if torch.cuda.is_available() else "cpu"
ptdtype = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[
    cfg.dtype
]
ctx = torch.autocast(device_type=device_type, dtype=ptdtype)


class Block(nn.Module):
    def __init__(self, d, drop=0.1):
        super().__init__()
        self.norm = nn.LayerNorm(d)
        self.net = nn.Sequential(
            nn.Linear(d, 4 * d), nn.GELU(approximate="tanh"), nn.Linear(4 * d, d), nn.Dropout(drop)
        )
        self.scale = nn.Parameter(torch.full((d,), 0.5))

    def forward(self, x):
        return x + self.scale * self.net(self.norm(x))


class Net(nn.Module):
    def __init__(self, d=16, n=2):
        super().__init__()
        self.inp = nn.Linear(4, d)
        self.blocks = nn.ModuleList([Block(d) for _ in range(n)])
        self.head = nn.Linear(d, 3)
        self.apply(self._init_weights)
        for pn, p in self.named_parameters():
            if pn.endswith("net.2.weight"):
                torch.nn.init.normal_(p, mean=0.0, std=0.02 / math.sqrt(2 * n))

    def _init_weights(self, module):
        if isinstance(module, nn.Linear):
            torch.nn.init.normal_(module.weight, mean=0.0, std=0.2)
            if module.bias is not None:
                torch.nn.init.zeros_(module.bias)

    def forward(self, x, y=None):
        x = self.inp(x)
        for b in self.blocks:
            x = b(x)
        logits = self.head(x)
        loss = None if y is None else F.cross_entropy(logits.float(), y)
        return logits, loss

    def configure_optimizers(self, wd, lr):
        decay = [p for p in self.parameters() if p.dim() >= 2]
        nodecay = [p for p in self.parameters() if p.dim() < 2]
        return torch.optim.AdamW(
            [{"params": decay, "weight_decay": wd}, {"params": nodecay, "weight_decay": 0.0}],
            lr=lr,
            betas=(0.9, 0.95),
            fused=False,
        )


def get_lr(it):
    if it < cfg.warmup:
        return cfg.lr * (it + 1) / cfg.warmup
    r = (it - cfg.warmup) / (cfg.steps - cfg.warmup)
    return cfg.min_lr + 0.5 * (1 + math.cos(math.pi * r)) * (cfg.lr - cfg.min_lr)


raw = Net()
model = torch.compile(raw) if cfg.compile else raw
optimizer = raw.configure_optimizers(0.1, cfg.lr)
scaler = GradScaler(device_type, enabled=(cfg.dtype == "float16"))
centres = torch.randn(3, 4) * 2


def batch(n=32):
    y = torch.randint(0, 3, (n,))
    return centres[y] + 0.5 * torch.randn(n, 4), y


hist = []
for it in range(cfg.steps):
    for g in optimizer.param_groups:
        g["lr"] = get_lr(it)
    for micro in range(cfg.accum):
        x, y = batch()
        with ctx:
            logits, loss = model(x, y)
            assert logits.dtype == ptdtype, logits.dtype
            loss = loss / cfg.accum
        scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(raw.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    hist.append(loss.item() * cfg.accum)
print(hist[0], hist[-1])
assert hist[-1] < hist[0]
# EMA & hooks & profiling bits people have
ema = torch.optim.swa_utils.AveragedModel(
    raw, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
)
ema.update_parameters(raw)
acts = {}
h = raw.blocks[0].register_forward_hook(lambda m, i, o: acts.__setitem__("b0", o.detach()))
raw.eval()
with torch.no_grad():
    raw(batch(4)[0])
h.remove()
assert acts["b0"].shape == torch.Size([4, 16])
scaler2 = torch.cuda.amp.GradScaler(enabled=False)
sd = scaler2.state_dict()
print(sd, scaler.get_scale())
x16 = torch.randn(3).half()
print(x16.dtype, x16.bfloat16().dtype, torch.finfo(torch.float16).max, torch.get_default_dtype())
try:
    import copy

    o2 = copy.deepcopy(optimizer)
    m2 = copy.deepcopy(raw)
    assert all(torch.equal(a, b) for a, b in zip(m2.parameters(), raw.parameters()))
finally:
    pass
print("ok")
