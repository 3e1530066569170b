"""A transformer that learns to reverse sequences: masks, collation, schedules, checkpoints."""

import math, os, tempfile, random
from typing import List, Tuple
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset, random_split
from torch.optim.lr_scheduler import LambdaLR

torch.manual_seed(0)
random.seed(0)
PAD, BOS, EOS = 0, 1, 2
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class ReverseDataset(Dataset):
    def __init__(self, n, lo=3, hi=7, vocab=13):
        self.items = []
        for _ in range(n):
            k = random.randint(lo, hi)
            src = [random.randint(3, vocab - 1) for _ in range(k)]
            self.items.append(
                (torch.tensor(src), torch.tensor([BOS] + src[::-1] + [EOS], dtype=torch.long))
            )

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


def collate(batch: List[Tuple[Tensor, Tensor]]):
    src, tgt = zip(*batch)
    return pad_sequence(list(src), padding_value=PAD), pad_sequence(list(tgt), padding_value=PAD)


class PositionalEncoding(nn.Module):
    def __init__(self, emb_size: int, dropout: float, maxlen: int = 64):
        super().__init__()
        den = torch.exp(-torch.arange(0, emb_size, 2) * math.log(10000) / emb_size)
        pos = torch.arange(0, maxlen).reshape(maxlen, 1)
        pos_embedding = torch.zeros((maxlen, emb_size))
        pos_embedding[:, 0::2] = torch.sin(pos * den)
        pos_embedding[:, 1::2] = torch.cos(pos * den)
        pos_embedding = pos_embedding.unsqueeze(-2)
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("pos_embedding", pos_embedding)

    def forward(self, token_embedding: Tensor):
        return self.dropout(token_embedding + self.pos_embedding[: token_embedding.size(0), :])


class TokenEmbedding(nn.Module):
    def __init__(self, vocab_size, emb_size):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, emb_size)
        self.emb_size = emb_size

    def forward(self, tokens: Tensor):
        return self.embedding(tokens.long()) * math.sqrt(self.emb_size)


class Seq2SeqTransformer(nn.Module):
    def __init__(self, layers, emb, heads, sv, tv, ff=64, dropout=0.0):
        super().__init__()
        self.transformer = nn.Transformer(
            d_model=emb,
            nhead=heads,
            num_encoder_layers=layers,
            num_decoder_layers=layers,
            dim_feedforward=ff,
            dropout=dropout,
        )
        self.generator = nn.Linear(emb, tv)
        self.src_tok_emb = TokenEmbedding(sv, emb)
        self.tgt_tok_emb = TokenEmbedding(tv, emb)
        self.positional_encoding = PositionalEncoding(emb, dropout=dropout)

    def forward(
        self,
        src,
        trg,
        src_mask,
        tgt_mask,
        src_padding_mask,
        tgt_padding_mask,
        memory_key_padding_mask,
    ):
        src_emb = self.positional_encoding(self.src_tok_emb(src))
        tgt_emb = self.positional_encoding(self.tgt_tok_emb(trg))
        outs = self.transformer(
            src_emb,
            tgt_emb,
            src_mask,
            tgt_mask,
            None,
            src_padding_mask,
            tgt_padding_mask,
            memory_key_padding_mask,
        )
        return self.generator(outs)

    def encode(self, src, src_mask):
        return self.transformer.encoder(self.positional_encoding(self.src_tok_emb(src)), src_mask)

    def decode(self, tgt, memory, tgt_mask):
        return self.transformer.decoder(
            self.positional_encoding(self.tgt_tok_emb(tgt)), memory, tgt_mask
        )


def generate_square_subsequent_mask(sz):
    mask = (torch.triu(torch.ones((sz, sz), device=DEVICE)) == 1).transpose(0, 1)
    mask = mask.float().masked_fill(mask == 0, float("-inf")).masked_fill(mask == 1, float(0.0))
    return mask


def create_mask(src, tgt):
    tgt_mask = generate_square_subsequent_mask(tgt.shape[0])
    src_mask = torch.zeros((src.shape[0], src.shape[0]), device=DEVICE).type(torch.bool)
    return src_mask, tgt_mask, (src == PAD).transpose(0, 1), (tgt == PAD).transpose(0, 1)


model = Seq2SeqTransformer(1, 32, 4, 13, 13)
for p in model.parameters():
    if p.dim() > 1:
        nn.init.xavier_uniform_(p)
model = model.to(DEVICE)
loss_fn = torch.nn.CrossEntropyLoss(ignore_index=PAD, label_smoothing=0.05)
optimizer = torch.optim.Adam(model.parameters(), lr=4e-3, betas=(0.9, 0.98), eps=1e-9)
scheduler = LambdaLR(optimizer, lr_lambda=lambda step: min((step + 1) / 20, 1.0))

full = ReverseDataset(288)
train_set, val_set = random_split(full, [256, 32], generator=torch.Generator().manual_seed(42))
train_loader = DataLoader(
    train_set, batch_size=32, shuffle=True, collate_fn=collate, drop_last=True
)


def run_epoch(loader, train=True):
    model.train(train)
    losses = 0.0
    for src, tgt in loader:
        src, tgt = src.to(DEVICE), tgt.to(DEVICE)
        tgt_input = tgt[:-1, :]
        m = create_mask(src, tgt_input)
        logits = model(src, tgt_input, m[0], m[1], m[2], m[3], m[2])
        tgt_out = tgt[1:, :]
        loss = loss_fn(logits.reshape(-1, logits.shape[-1]), tgt_out.reshape(-1))
        if train:
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
            assert torch.isfinite(norm)
            optimizer.step()
            scheduler.step()
        losses += loss.item()
    return losses / len(list(loader))


first = run_epoch(train_loader)
for epoch in range(2, 9):
    last = run_epoch(train_loader)
    print(f"Epoch: {epoch}, Train loss: {last:.3f}, lr {scheduler.get_last_lr()[0]:.2e}")
with torch.no_grad():
    val = run_epoch(DataLoader(val_set, batch_size=16, collate_fn=collate), train=False)
print(first, last, val)
assert last < first


def greedy_decode(model, src, src_mask, max_len, start_symbol):
    memory = model.encode(src, src_mask)
    ys = torch.ones(1, 1).fill_(start_symbol).type(torch.long).to(DEVICE)
    for i in range(max_len - 1):
        tgt_mask = (generate_square_subsequent_mask(ys.size(0)).type(torch.bool)).to(DEVICE)
        out = model.decode(ys, memory, tgt_mask).transpose(0, 1)
        prob = model.generator(out[:, -1])
        _, next_word = torch.max(prob, dim=1)
        next_word = next_word.item()
        ys = torch.cat([ys, torch.ones(1, 1).type_as(src.data).fill_(next_word)], dim=0)
        if next_word == EOS:
            break
    return ys


model.eval()
src = full[0][0].view(-1, 1)
out = greedy_decode(
    model, src, torch.zeros(src.shape[0], src.shape[0]).type(torch.bool), src.shape[0] + 2, BOS
).flatten()
print(src.flatten().tolist(), "->", " ".join(map(str, out.cpu().numpy().tolist())))
with tempfile.TemporaryDirectory() as d:
    path = os.path.join(d, "checkpoint.pt")
    torch.save(
        {
            "epoch": 8,
            "model_state_dict": model.state_dict(),
            "optimizer_state_dict": optimizer.state_dict(),
            "scheduler": scheduler.state_dict()
            if False
            else {k: v for k, v in scheduler.state_dict().items() if k != "lr_lambdas"},
            "loss": last,
        },
        path,
    )
    other = Seq2SeqTransformer(1, 32, 4, 13, 13)
    ckpt = torch.load(path, map_location=DEVICE)
    print(other.load_state_dict(ckpt["model_state_dict"]))
    opt2 = torch.optim.Adam(other.parameters(), lr=1.0)
    opt2.load_state_dict(ckpt["optimizer_state_dict"])
    assert abs(opt2.param_groups[0]["lr"] - optimizer.param_groups[0]["lr"]) < 1e-12
    other.eval()
    again = greedy_decode(
        other, src, torch.zeros(src.shape[0], src.shape[0]).type(torch.bool), src.shape[0] + 2, BOS
    ).flatten()
    assert torch.equal(out, again)
print(sum(p.numel() for p in model.parameters() if p.requires_grad), "parameters OK")
