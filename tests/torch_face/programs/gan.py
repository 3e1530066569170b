"""A GAN on a ring of Gaussians, as tutorials write it."""

import torch
import torch.nn as nn
import torch.optim as optim

torch.manual_seed(0)


class Generator(nn.Module):
    def __init__(self, latent_dim, hidden=32):
        super().__init__()
        self.model = nn.Sequential(
            nn.Linear(latent_dim, hidden), nn.LeakyReLU(0.2, inplace=True), nn.Linear(hidden, 2)
        )

    def forward(self, z):
        return self.model(z)


class Discriminator(nn.Module):
    def __init__(self, hidden=32):
        super().__init__()
        self.model = nn.Sequential(
            nn.Linear(2, hidden),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Linear(hidden, 1),
            nn.Sigmoid(),
        )

    def forward(self, x):
        return self.model(x)


def weights_init(m):
    if m.__class__.__name__.find("Linear") != -1:
        nn.init.normal_(m.weight.data, 0.0, 0.3)
        nn.init.constant_(m.bias.data, 0)


def real_batch(n):
    angle = torch.randint(0, 8, (n,)).float() * (2 * torch.pi / 8)
    return torch.stack((angle.cos(), angle.sin()), dim=1) + 0.05 * torch.randn(n, 2)


latent_dim, batch = 4, 64
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
generator, discriminator = Generator(latent_dim).to(device), Discriminator().to(device)
generator.apply(weights_init)
discriminator.apply(weights_init)
criterion = nn.BCELoss()
opt_g = optim.Adam(generator.parameters(), lr=5e-3, betas=(0.5, 0.999))
opt_d = optim.Adam(discriminator.parameters(), lr=5e-3, betas=(0.5, 0.999))
valid, fake = torch.ones(batch, 1, device=device), torch.zeros(batch, 1, device=device)
fixed = torch.randn(256, latent_dim, device=device)


def radius():
    with torch.no_grad():
        return generator(fixed).norm(dim=1).mean().item()


first = abs(radius() - 1)
for step in range(60):
    opt_d.zero_grad(set_to_none=True)
    z = torch.randn(batch, latent_dim, device=device)
    gen = generator(z)
    real_loss = criterion(discriminator(real_batch(batch).to(device)), valid)
    fake_loss = criterion(discriminator(gen.detach()), fake)
    d_loss = (real_loss + fake_loss) / 2
    d_loss.backward()
    opt_d.step()

    opt_g.zero_grad(set_to_none=True)
    g_loss = criterion(discriminator(gen), valid)
    g_loss.backward()
    opt_g.step()

assert torch.isfinite(d_loss) and torch.isfinite(g_loss)
assert d_loss.item() < 1.5 and list(discriminator.state_dict())[0] == "model.0.weight"
assert abs(radius() - 1) < max(first, 0.6)
