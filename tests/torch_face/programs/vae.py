"""A variational autoencoder on made images, in the manner of PyTorch's example."""

import torch
import torch.utils.data
from torch import nn, optim
from torch.nn import functional as F

torch.manual_seed(1)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
kwargs = {"num_workers": 0, "pin_memory": True} if device.type == "cuda" else {}


class Bars(torch.utils.data.Dataset):
    """Images of one bright row or column."""

    def __init__(self, count, side):
        self.count, self.side = count, side

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        image = torch.zeros(1, self.side, self.side)
        if index % 2:
            image[0, index // 2 % self.side] = 1
        else:
            image[0, :, index // 2 % self.side] = 1
        return image, index % 2


train_loader = torch.utils.data.DataLoader(Bars(256, 8), batch_size=32, shuffle=True, **kwargs)


class VAE(nn.Module):
    def __init__(self):
        super(VAE, self).__init__()
        self.fc1 = nn.Linear(64, 48)
        self.fc21 = nn.Linear(48, 6)
        self.fc22 = nn.Linear(48, 6)
        self.fc3 = nn.Linear(6, 48)
        self.fc4 = nn.Linear(48, 64)

    def encode(self, x):
        h1 = F.relu(self.fc1(x))
        return self.fc21(h1), self.fc22(h1)

    def reparameterize(self, mu, logvar):
        std = torch.exp(0.5 * logvar)
        eps = torch.randn_like(std)
        return mu + eps * std

    def decode(self, z):
        h3 = F.relu(self.fc3(z))
        return torch.sigmoid(self.fc4(h3))

    def forward(self, x):
        mu, logvar = self.encode(x.view(-1, 64))
        z = self.reparameterize(mu, logvar)
        return self.decode(z), mu, logvar


model = VAE().to(device)
optimizer = optim.Adam(model.parameters(), lr=3e-3)


def loss_function(recon_x, x, mu, logvar):
    BCE = F.binary_cross_entropy(recon_x, x.view(-1, 64), reduction="sum")
    KLD = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
    return BCE + KLD


def train(epoch):
    model.train()
    train_loss = 0
    for batch_idx, (data, _) in enumerate(train_loader):
        data = data.to(device)
        optimizer.zero_grad()
        recon_batch, mu, logvar = model(data)
        loss = loss_function(recon_batch, data, mu, logvar)
        loss.backward()
        train_loss += loss.item()
        optimizer.step()
        if batch_idx % 4 == 0:
            print(
                f"Train Epoch: {epoch} [{batch_idx * len(data)}/{len(train_loader.dataset)}"
                f"]\tLoss: {loss.item() / len(data):.6f}"
            )
    return train_loss / len(train_loader.dataset)


averages = [train(epoch) for epoch in range(1, 9)]
model.eval()
with torch.no_grad():
    sample = torch.randn(16, 6).to(device)
    sample = model.decode(sample).cpu()
    grid = sample.view(16, 1, 8, 8)
    brightest, where = grid.view(16, -1).max(dim=1)

assert averages[-1] < 0.6 * averages[0], averages
assert grid.shape == (16, 1, 8, 8) and where.dtype == torch.int64
assert 0 <= grid.min().item() and brightest.max() <= 1
