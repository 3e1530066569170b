"""A GAN with spectral norm, a hinge loss and a gradient penalty."""

import argparse
import torch
from torch import nn, optim
from torch.nn.utils import spectral_norm
from torch.autograd import Variable, grad
import torch.utils.data as data
import numpy as np

parser = argparse.ArgumentParser()
parser.add_argument("--z", type=int, default=8)
parser.add_argument("--iters", type=int, default=25)
opt = parser.parse_args([])
torch.manual_seed(1)


def weights_init(m):
    classname = m.__class__.__name__
    if classname.find("Conv") != -1 and hasattr(m, "weight_orig") is False:
        m.weight.data.normal_(0.0, 0.02)
    elif classname.find("BatchNorm") != -1:
        m.weight.data.normal_(1.0, 0.02)
        m.bias.data.fill_(0)


class Generator(nn.Module):
    def __init__(self, z):
        super(Generator, self).__init__()
        self.main = nn.Sequential(
            nn.ConvTranspose2d(z, 16, 4, 1, 0, bias=False),
            nn.BatchNorm2d(16),
            nn.ReLU(True),
            nn.ConvTranspose2d(16, 1, 4, stride=2, padding=1, bias=False),
            nn.Tanh(),
        )

    def forward(self, x):
        return self.main(x)


class Discriminator(nn.Module):
    def __init__(self):
        super(Discriminator, self).__init__()
        self.conv = nn.Sequential(
            spectral_norm(nn.Conv2d(1, 16, 4, stride=2, padding=1)),
            nn.LeakyReLU(0.2, inplace=True),
            spectral_norm(nn.Conv2d(16, 32, 4, stride=2, padding=1)),
            nn.LeakyReLU(0.2, inplace=True),
        )
        self.fc = spectral_norm(nn.Linear(32 * 2 * 2, 1))

    def forward(self, x):
        return self.fc(self.conv(x).flatten(1)).squeeze(1)


def real_images(n):
    yy, xx = np.mgrid[0:8, 0:8].astype(np.float32)
    rng = np.random.RandomState(0)
    c = rng.uniform(2, 5, size=(n, 2)).astype(np.float32)
    img = np.exp(
        -((yy[None] - c[:, 0, None, None]) ** 2 + (xx[None] - c[:, 1, None, None]) ** 2) / 4
    )
    return torch.from_numpy(img * 2 - 1).unsqueeze(1)


ds = data.TensorDataset(real_images(128))
loader = data.DataLoader(ds, batch_size=32, shuffle=True)
netG, netD = Generator(opt.z), Discriminator()
netG.apply(weights_init)
netD.apply(weights_init)
print(netD)
optG = optim.Adam(netG.parameters(), lr=2e-3, betas=(0.5, 0.999))
optD = optim.Adam(filter(lambda p: p.requires_grad, netD.parameters()), lr=2e-3, betas=(0.5, 0.999))
fixed = torch.randn(4, opt.z, 1, 1)


def gradient_penalty(real, fake):
    eps = torch.rand(real.size(0), 1, 1, 1).expand_as(real)
    mix = Variable(eps * real.data + (1 - eps) * fake.data, requires_grad=True)
    out = netD(mix)
    g = grad(
        outputs=out,
        inputs=mix,
        grad_outputs=torch.ones_like(out),
        create_graph=True,
        retain_graph=True,
        only_inputs=True,
    )[0]
    return ((g.view(g.size(0), -1).norm(2, dim=1) - 1) ** 2).mean()


it = 0
history = []
while it < opt.iters:
    for (real,) in loader:
        for p in netD.parameters():
            p.requires_grad_(True)
        b = real.size(0)
        noise = torch.randn(b, opt.z, 1, 1)
        fake = netG(noise).detach()
        d_loss = nn.ReLU()(1.0 - netD(real)).mean() + nn.ReLU()(1.0 + netD(fake)).mean()
        gp = gradient_penalty(real, fake)
        optD.zero_grad()
        (d_loss + 0.1 * gp).backward()
        optD.step()
        for p in netD.parameters():
            p.requires_grad_(False)
        optG.zero_grad()
        g_loss = -netD(netG(noise)).mean()
        g_loss.backward()
        optG.step()
        history.append((d_loss.item(), g_loss.item(), float(gp)))
        it += 1
        if it >= opt.iters:
            break
print(history[0], history[-1])
assert all(map(np.isfinite, history[-1]))
with torch.no_grad():
    w = netD.conv[0].weight
    s = torch.linalg.svdvals(w.reshape(w.shape[0], -1))[0]
print("sigma", s.item())
assert 0.5 < s.item() < 1.6
sample = netG(fixed).detach().cpu()
grid = ((sample + 1) / 2).clamp_(0, 1).mul(255).byte().permute(0, 2, 3, 1).numpy()
assert grid.shape == (4, 8, 8, 1) and grid.dtype == np.uint8
