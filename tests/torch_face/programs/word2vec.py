"""Skip-gram with negative sampling on a few sentences, as tutorials write it."""

import random
from collections import Counter

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

random.seed(1)
torch.manual_seed(1)
corpus = "the king rules the land . the queen rules the land . a dog barks loud . a cat meows ."
tokens = corpus.split()
counts = Counter(tokens)
vocab = {word: i for i, (word, _) in enumerate(counts.most_common())}
ids = [vocab[t] for t in tokens]


class SkipGramDataset(Dataset):
    def __init__(self, ids, window=2):
        self.pairs = [
            (ids[i], ids[j])
            for i in range(len(ids))
            for j in range(max(0, i - window), min(len(ids), i + window + 1))
            if i != j
        ]

    def __len__(self):
        return len(self.pairs)

    def __getitem__(self, i):
        return torch.tensor(self.pairs[i][0]), torch.tensor(self.pairs[i][1])


class SkipGram(nn.Module):
    def __init__(self, vocab_size, dim):
        super().__init__()
        self.center = nn.Embedding(vocab_size, dim)
        self.context = nn.Embedding(vocab_size, dim)
        nn.init.uniform_(self.center.weight, -0.5 / dim, 0.5 / dim)
        nn.init.zeros_(self.context.weight)

    def forward(self, center, context, negatives):
        v = self.center(center)
        positive = F.logsigmoid((v * self.context(context)).sum(dim=1))
        score = torch.bmm(self.context(negatives), v.unsqueeze(2)).squeeze(2)
        return -(positive + F.logsigmoid(-score).sum(dim=1)).mean()


frequency = torch.tensor([counts[w] for w in vocab], dtype=torch.float) ** 0.75
model = SkipGram(len(vocab), 8)
optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
loader = DataLoader(SkipGramDataset(ids), batch_size=16, shuffle=True, drop_last=True)
history = []
for epoch in range(4):
    total = 0.0
    for center, context in loader:
        n = center.size(0)
        negatives = torch.multinomial(frequency, n * 3, replacement=True).view(n, 3)
        loss = model(center, context, negatives)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        total += loss.item()
    history.append(total / len(loader))

assert history[-1] < history[0]
similarity = F.cosine_similarity(model.center.weight[vocab["king"]], model.center.weight, dim=-1)
values, indices = similarity.topk(3)
assert indices[0].item() == vocab["king"] and abs(values[0].item() - 1) < 1e-4
