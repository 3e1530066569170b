"""Denoising diffusion of two-dimensional points and small images, as its tutorials write it."""

import math
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import Adam

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"


def exists(x):
    return x is not None


def default(val, d):
    if exists(val):
        return val
    return d() if callable(d) else d


def linear_beta_schedule(timesteps):
    beta_start = 0.0001
    beta_end = 0.2
    return torch.linspace(beta_start, beta_end, timesteps)


timesteps = 20
betas = linear_beta_schedule(timesteps=timesteps)
alphas = 1.0 - betas
alphas_cumprod = torch.cumprod(alphas, axis=0)
alphas_cumprod_prev = F.pad(alphas_cumprod[:-1], (1, 0), value=1.0)
sqrt_recip_alphas = torch.sqrt(1.0 / alphas)
sqrt_alphas_cumprod = torch.sqrt(alphas_cumprod)
sqrt_one_minus_alphas_cumprod = torch.sqrt(1.0 - alphas_cumprod)
posterior_variance = betas * (1.0 - alphas_cumprod_prev) / (1.0 - alphas_cumprod)


def extract(a, t, x_shape):
    batch_size = t.shape[0]
    out = a.gather(-1, t.cpu())
    return out.reshape(batch_size, *((1,) * (len(x_shape) - 1))).to(t.device)


def q_sample(x_start, t, noise=None):
    noise = default(noise, lambda: torch.randn_like(x_start))
    return (
        extract(sqrt_alphas_cumprod, t, x_start.shape) * x_start
        + extract(sqrt_one_minus_alphas_cumprod, t, x_start.shape) * noise
    )


class SinusoidalPositionEmbeddings(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.dim = dim

    def forward(self, time):
        half_dim = self.dim // 2
        embeddings = math.log(10000) / (half_dim - 1)
        embeddings = torch.exp(torch.arange(half_dim, device=time.device) * -embeddings)
        embeddings = time[:, None] * embeddings[None, :]
        return torch.cat((embeddings.sin(), embeddings.cos()), dim=-1)


class Block(nn.Module):
    def __init__(self, dim, dim_out, groups=4):
        super().__init__()
        self.proj = nn.Conv2d(dim, dim_out, 3, padding=1)
        self.norm = nn.GroupNorm(groups, dim_out)
        self.act = nn.SiLU()

    def forward(self, x, scale_shift=None):
        x = self.norm(self.proj(x))
        if exists(scale_shift):
            scale, shift = scale_shift
            x = x * (scale + 1) + shift
        return self.act(x)


class ResnetBlock(nn.Module):
    def __init__(self, dim, dim_out, *, time_emb_dim=None, groups=4):
        super().__init__()
        self.mlp = (
            nn.Sequential(nn.SiLU(), nn.Linear(time_emb_dim, dim_out * 2))
            if exists(time_emb_dim)
            else None
        )
        self.block1 = Block(dim, dim_out, groups=groups)
        self.block2 = Block(dim_out, dim_out, groups=groups)
        self.res_conv = nn.Conv2d(dim, dim_out, 1) if dim != dim_out else nn.Identity()

    def forward(self, x, time_emb=None):
        scale_shift = None
        if exists(self.mlp) and exists(time_emb):
            time_emb = self.mlp(time_emb)
            time_emb = time_emb[:, :, None, None]
            scale_shift = time_emb.chunk(2, dim=1)
        h = self.block1(x, scale_shift=scale_shift)
        h = self.block2(h)
        return h + self.res_conv(x)


class LinearAttention(nn.Module):
    def __init__(self, dim, heads=2, dim_head=8):
        super().__init__()
        self.scale = dim_head**-0.5
        self.heads = heads
        hidden_dim = dim_head * heads
        self.to_qkv = nn.Conv2d(dim, hidden_dim * 3, 1, bias=False)
        self.to_out = nn.Sequential(nn.Conv2d(hidden_dim, dim, 1), nn.GroupNorm(1, dim))

    def forward(self, x):
        b, c, h, w = x.shape
        qkv = self.to_qkv(x).chunk(3, dim=1)
        q, k, v = map(lambda t: t.reshape(b, self.heads, -1, h * w), qkv)
        q = q.softmax(dim=-2)
        k = k.softmax(dim=-1)
        q = q * self.scale
        context = torch.einsum("b h d n, b h e n -> b h d e", k, v)
        out = torch.einsum("b h d e, b h d n -> b h e n", context, q)
        return self.to_out(out.reshape(b, -1, h, w))


class Unet(nn.Module):
    def __init__(self, dim, channels=1):
        super().__init__()
        self.init_conv = nn.Conv2d(channels, dim, 3, padding=1)
        time_dim = dim * 4
        block = partial(ResnetBlock, groups=4)
        self.time_mlp = nn.Sequential(
            SinusoidalPositionEmbeddings(dim),
            nn.Linear(dim, time_dim),
            nn.GELU(),
            nn.Linear(time_dim, time_dim),
        )
        self.downs = nn.ModuleList([])
        self.ups = nn.ModuleList([])
        self.downs.append(
            nn.ModuleList(
                [
                    block(dim, dim, time_emb_dim=time_dim),
                    LinearAttention(dim),
                    nn.Conv2d(dim, dim * 2, 4, 2, 1),
                ]
            )
        )
        self.mid_block = block(dim * 2, dim * 2, time_emb_dim=time_dim)
        self.ups.append(
            nn.ModuleList(
                [
                    nn.Sequential(
                        nn.Upsample(scale_factor=2, mode="nearest"),
                        nn.Conv2d(dim * 2, dim, 3, padding=1),
                    ),
                    block(dim * 2, dim, time_emb_dim=time_dim),
                ]
            )
        )
        self.final_conv = nn.Conv2d(dim, channels, 1)

    def forward(self, x, time):
        x = self.init_conv(x)
        t = self.time_mlp(time)
        h = []
        for block, attn, downsample in self.downs:
            x = block(x, t)
            x = attn(x) + x
            h.append(x)
            x = downsample(x)
        x = self.mid_block(x, t)
        for upsample, block in self.ups:
            x = torch.cat((upsample(x), h.pop()), dim=1)
            x = block(x, t)
        return self.final_conv(x)


def p_losses(denoise_model, x_start, t, noise=None, loss_type="l1"):
    if noise is None:
        noise = torch.randn_like(x_start)
    x_noisy = q_sample(x_start=x_start, t=t, noise=noise)
    predicted_noise = denoise_model(x_noisy, t)
    if loss_type == "l1":
        loss = F.l1_loss(noise, predicted_noise)
    elif loss_type == "l2":
        loss = F.mse_loss(noise, predicted_noise)
    elif loss_type == "huber":
        loss = F.smooth_l1_loss(noise, predicted_noise)
    else:
        raise NotImplementedError()
    return loss


@torch.no_grad()
def p_sample(model, x, t, t_index):
    betas_t = extract(betas, t, x.shape)
    sqrt_one_minus_t = extract(sqrt_one_minus_alphas_cumprod, t, x.shape)
    sqrt_recip_t = extract(sqrt_recip_alphas, t, x.shape)
    model_mean = sqrt_recip_t * (x - betas_t * model(x, t) / sqrt_one_minus_t)
    if t_index == 0:
        return model_mean
    noise = torch.randn_like(x)
    return model_mean + torch.sqrt(extract(posterior_variance, t, x.shape)) * noise


@torch.no_grad()
def p_sample_loop(model, shape):
    device = next(model.parameters()).device
    b = shape[0]
    img = torch.randn(shape, device=device)
    imgs = []
    for i in reversed(range(0, timesteps)):
        img = p_sample(model, img, torch.full((b,), i, device=device, dtype=torch.long), i)
        imgs.append(img.cpu().numpy())
    return imgs


image_size, batch_size = 8, 16
model = Unet(dim=8).to(device)
optimizer = Adam(model.parameters(), lr=5e-3)
ema = {name: p.detach().clone() for name, p in model.named_parameters()}
losses = []
for step in range(30):
    optimizer.zero_grad()
    batch = torch.zeros(batch_size, 1, image_size, image_size, device=device)
    rows = torch.randint(0, image_size, (batch_size,))
    batch[torch.arange(batch_size), 0, rows] = 2.0
    batch = batch - 1
    t = torch.randint(0, timesteps, (batch_size,), device=device).long()
    loss = p_losses(model, batch, t, loss_type="huber")
    losses.append(loss.item())
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for name, p in model.named_parameters():
            ema[name].mul_(0.9).add_(p, alpha=0.1)

samples = p_sample_loop(model, shape=(2, 1, image_size, image_size))
early, late = sum(losses[:5]) / 5, sum(losses[-5:]) / 5
print(early, late)

assert late < 0.7 * early, (early, late)
assert len(samples) == timesteps and samples[-1].shape == (2, 1, 8, 8)
assert all((v - p).abs().max() < 1 for v, p in zip(ema.values(), model.parameters()))
