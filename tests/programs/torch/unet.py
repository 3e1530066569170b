"""A U-Net that segments squares: interpolation, Dice loss, two schedules."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import Dataset, DataLoader
from collections import OrderedDict, defaultdict
import time, copy
import numpy as np

torch.manual_seed(3)
np.random.seed(3)


class Shapes(Dataset):
    def __init__(self, count, size=16, transform=None):
        self.count, self.size, self.transform = count, size, transform

    def __len__(self):
        return self.count

    def __getitem__(self, idx):
        rng = np.random.default_rng(idx)
        img = rng.normal(0, 0.1, (3, self.size, self.size)).astype("float32")
        mask = np.zeros((1, self.size, self.size), "float32")
        y, x, r = rng.integers(3, self.size - 5, 2).tolist() + [4]
        mask[0, y : y + r, x : x + r] = 1
        img += mask
        if self.transform:
            img = self.transform(img)
        return [torch.from_numpy(img), torch.from_numpy(mask)]


class DoubleConv(nn.Module):
    """(convolution => [BN] => ReLU) * 2"""

    def __init__(self, in_channels, out_channels, mid_channels=None):
        super().__init__()
        if not mid_channels:
            mid_channels = out_channels
        self.double_conv = nn.Sequential(
            OrderedDict(
                [
                    (
                        "conv1",
                        nn.Conv2d(in_channels, mid_channels, kernel_size=3, padding=1, bias=False),
                    ),
                    ("bn1", nn.BatchNorm2d(mid_channels)),
                    ("relu1", nn.ReLU(inplace=True)),
                    (
                        "conv2",
                        nn.Conv2d(mid_channels, out_channels, kernel_size=3, padding=1, bias=False),
                    ),
                    ("bn2", nn.BatchNorm2d(out_channels)),
                    ("relu2", nn.ReLU(inplace=True)),
                ]
            )
        )

    def forward(self, x):
        return self.double_conv(x)


class Down(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.maxpool_conv = nn.Sequential(nn.MaxPool2d(2), DoubleConv(i, o))

    def forward(self, x):
        return self.maxpool_conv(x)


class Up(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.conv = DoubleConv(i, o, i // 2)

    def forward(self, x1, x2):
        x1 = F.interpolate(x1, scale_factor=2, mode="bilinear", align_corners=True)
        diffY = x2.size()[2] - x1.size()[2]
        diffX = x2.size()[3] - x1.size()[3]
        x1 = F.pad(x1, [diffX // 2, diffX - diffX // 2, diffY // 2, diffY - diffY // 2])
        return self.conv(torch.cat([x2, x1], dim=1))


class UNet(nn.Module):
    def __init__(self, n_channels, n_classes, w=4):
        super().__init__()
        self.inc = DoubleConv(n_channels, w)
        self.down1 = Down(w, 2 * w)
        self.down2 = Down(2 * w, 2 * w)
        self.up1 = Up(4 * w, w)
        self.up2 = Up(2 * w, w)
        self.outc = nn.Conv2d(w, n_classes, kernel_size=1)

    def forward(self, x):
        x1 = self.inc(x)
        x2 = self.down1(x1)
        x3 = self.down2(x2)
        x = self.up1(x3, x2)
        x = self.up2(x, x1)
        return self.outc(x)


def dice_loss(pred, target, smooth=1.0):
    pred = pred.contiguous()
    target = target.contiguous()
    intersection = (pred * target).sum(dim=2).sum(dim=2)
    loss = 1 - (
        (2.0 * intersection + smooth)
        / (pred.sum(dim=2).sum(dim=2) + target.sum(dim=2).sum(dim=2) + smooth)
    )
    return loss.mean()


def calc_loss(pred, target, metrics, bce_weight=0.5):
    bce = F.binary_cross_entropy_with_logits(pred, target)
    pred = torch.sigmoid(pred)
    dice = dice_loss(pred, target)
    loss = bce * bce_weight + dice * (1 - bce_weight)
    metrics["bce"] += bce.data.cpu().numpy() * target.size(0)
    metrics["dice"] += dice.data.cpu().numpy() * target.size(0)
    metrics["loss"] += loss.data.cpu().numpy() * target.size(0)
    return loss


dataloaders = {
    "train": DataLoader(Shapes(32), batch_size=8, shuffle=True, num_workers=0),
    "val": DataLoader(Shapes(8), batch_size=8, shuffle=False),
}
model = UNet(3, 1)
optimizer_ft = torch.optim.SGD(
    model.parameters(), lr=0.3, momentum=0.9, weight_decay=1e-4, nesterov=True
)
exp_lr_scheduler = torch.optim.lr_scheduler.StepLR(optimizer_ft, step_size=3, gamma=0.5)
plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(
    optimizer_ft, mode="min", factor=0.5, patience=10
)
best_model_wts = copy.deepcopy(model.state_dict())
best_loss = 1e10
losses = []
for epoch in range(6):
    for phase in ["train", "val"]:
        model.train() if phase == "train" else model.eval()
        metrics = defaultdict(float)
        epoch_samples = 0
        for inputs, labels in dataloaders[phase]:
            optimizer_ft.zero_grad()
            with torch.set_grad_enabled(phase == "train"):
                outputs = model(inputs)
                loss = calc_loss(outputs, labels, metrics)
                if phase == "train":
                    loss.backward()
                    optimizer_ft.step()
            epoch_samples += inputs.size(0)
        if phase == "train":
            exp_lr_scheduler.step()
            for param_group in optimizer_ft.param_groups:
                lr = param_group["lr"]
        else:
            plateau.step(metrics["loss"])
        epoch_loss = metrics["loss"] / epoch_samples
        if phase == "val" and epoch_loss < best_loss:
            best_loss = epoch_loss
            best_model_wts = copy.deepcopy(model.state_dict())
    losses.append(float(epoch_loss))
    print(epoch, lr, {k: round(float(v) / epoch_samples, 4) for k, v in metrics.items()})
model.load_state_dict(best_model_wts)
with torch.inference_mode():
    probs = torch.sigmoid(model(next(iter(dataloaders["val"]))[0]))
    mask = probs > 0.5
up = F.interpolate(probs, size=(24, 20), mode="nearest")
assert tuple(up.shape) == (8, 1, 24, 20)
up = nn.Upsample(scale_factor=2, mode="bicubic", align_corners=False)(probs)
assert up.shape[-1] == 32
print(losses, mask.float().mean().item())
assert min(losses) < losses[0]
