"""Small models, written once for PyTorch and numus: their state dicts have the same names."""


def gpt(nn, vocabulary=13, width=8, heads=2, layers=2, length=6):
    """A language model after GPT-2, its output tied to its embedding."""
    F = nn.functional

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.c_attn = nn.Linear(width, 3 * width)
            self.c_proj = nn.Linear(width, width)

        def forward(self, x):
            b, t, _ = x.shape
            parts = self.c_attn(x).reshape((b, t, 3, heads, width // heads))
            q, k, v = (parts[:, :, i].swapaxes(1, 2) for i in range(3))
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            return self.c_proj(y.swapaxes(1, 2).reshape((b, t, width)))

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.ln_1 = nn.LayerNorm(width)
            self.attn = Attention()
            self.ln_2 = nn.LayerNorm(width)
            self.mlp = nn.Sequential(
                nn.Linear(width, 4 * width), nn.GELU("tanh"), nn.Linear(4 * width, width)
            )

        def forward(self, x):
            x = x + self.attn(self.ln_1(x))
            return x + self.mlp(self.ln_2(x))

    class GPT(nn.Module):
        def __init__(self):
            super().__init__()
            self.wte = nn.Embedding(vocabulary, width)
            self.wpe = nn.Embedding(length, width)
            self.h = nn.ModuleList([Block() for _ in range(layers)])
            self.ln_f = nn.LayerNorm(width)
            self.lm_head = nn.Linear(width, vocabulary, bias=False)
            self.lm_head.weight = self.wte.weight

        def forward(self, tokens, places):
            x = self.wte(tokens) + self.wpe(places)
            for block in self.h:
                x = block(x)
            return self.lm_head(self.ln_f(x))

    return GPT()


def tagger(nn, vocabulary=11, width=6, hidden=5, tags=4):
    """A class for each token, by an LSTM in both directions."""

    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(vocabulary, width, padding_idx=0)
            self.lstm = nn.LSTM(width, hidden, 2, batch_first=True, bidirectional=True)
            self.head = nn.Linear(2 * hidden, tags)

        def forward(self, tokens):
            out, _ = self.lstm(self.embedding(tokens))
            return self.head(out)

    return Tagger()


def resnet(nn, widths=(4, 6, 8, 10), classes=5):
    """ResNet-18, narrow: two blocks in each of four stages."""

    class Block(nn.Module):
        def __init__(self, given, width, stride):
            super().__init__()
            self.conv1 = nn.Conv2d(given, width, 3, stride, 1, bias=False)
            self.bn1 = nn.BatchNorm2d(width)
            self.relu = nn.ReLU()
            self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
            self.bn2 = nn.BatchNorm2d(width)
            self.downsample = None
            if stride != 1 or given != width:
                self.downsample = nn.Sequential(
                    nn.Conv2d(given, width, 1, stride, bias=False), nn.BatchNorm2d(width)
                )

        def forward(self, x):
            y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
            return self.relu(y + (x if self.downsample is None else self.downsample(x)))

    class ResNet(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv1 = nn.Conv2d(3, widths[0], 7, 2, 3, bias=False)
            self.bn1 = nn.BatchNorm2d(widths[0])
            self.relu = nn.ReLU()
            self.maxpool = nn.MaxPool2d(3, 2, 1)
            given = widths[0]
            for i, width in enumerate(widths, 1):
                stage = nn.Sequential(Block(given, width, 1 + (i > 1)), Block(width, width, 1))
                setattr(self, f"layer{i}", stage)
                given = width
            self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
            self.fc = nn.Linear(given, classes)

        def forward(self, x):
            x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
            x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
            return self.fc(self.avgpool(x).reshape((x.shape[0], -1)))

    return ResNet()


# name: the model, its inputs as (low, high, shape) of integers, or a shape of floats
MODELS = {
    "gpt": (gpt, [(0, 13, (2, 6)), (0, 6, (2, 6))]),
    "tagger": (tagger, [(0, 11, (3, 5))]),
    "resnet": (resnet, [(2, 3, 40, 36)]),
}
