"""An LSTM for part-of-speech tags, in the manner of the sequence tutorial, and in batches."""

import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence

torch.manual_seed(1)


def prepare_sequence(seq, to_ix):
    idxs = [to_ix[w] for w in seq]
    return torch.tensor(idxs, dtype=torch.long)


training_data = [
    ("The dog ate the apple".split(), ["DET", "NN", "V", "DET", "NN"]),
    ("Everybody read that book".split(), ["NN", "V", "DET", "NN"]),
    ("The child saw that dog".split(), ["DET", "NN", "V", "DET", "NN"]),
]
word_to_ix = {}
for sent, _tags in training_data:
    for word in sent:
        if word not in word_to_ix:
            word_to_ix[word] = len(word_to_ix)
tag_to_ix = {"DET": 0, "NN": 1, "V": 2}
ix_to_tag = {v: k for k, v in tag_to_ix.items()}

EMBEDDING_DIM = 8
HIDDEN_DIM = 12


class LSTMTagger(nn.Module):
    def __init__(self, embedding_dim, hidden_dim, vocab_size, tagset_size):
        super(LSTMTagger, self).__init__()
        self.hidden_dim = hidden_dim
        self.word_embeddings = nn.Embedding(vocab_size, embedding_dim)
        self.lstm = nn.LSTM(embedding_dim, hidden_dim)
        self.hidden2tag = nn.Linear(hidden_dim, tagset_size)

    def forward(self, sentence):
        embeds = self.word_embeddings(sentence)
        lstm_out, _ = self.lstm(embeds.view(len(sentence), 1, -1))
        tag_space = self.hidden2tag(lstm_out.view(len(sentence), -1))
        return F.log_softmax(tag_space, dim=1)


model = LSTMTagger(EMBEDDING_DIM, HIDDEN_DIM, len(word_to_ix), len(tag_to_ix))
loss_function = nn.NLLLoss()
optimizer = optim.SGD(model.parameters(), lr=0.5)
scheduler = optim.lr_scheduler.StepLR(optimizer, step_size=15, gamma=0.5)

with torch.no_grad():
    inputs = prepare_sequence(training_data[0][0], word_to_ix)
    first = loss_function(model(inputs), prepare_sequence(training_data[0][1], tag_to_ix)).item()

for epoch in range(30):
    for sentence, tags in training_data:
        model.zero_grad()
        sentence_in = prepare_sequence(sentence, word_to_ix)
        targets = prepare_sequence(tags, tag_to_ix)
        tag_scores = model(sentence_in)
        loss = loss_function(tag_scores, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
    scheduler.step()

with torch.no_grad():
    tag_scores = model(inputs)
    _, predicted = torch.max(tag_scores, 1)
    tagged = [ix_to_tag[i.item()] for i in predicted]
    print(list(zip(training_data[0][0], tagged)))


class BiTagger(nn.Module):
    """The same for padded batches of sentences, in both directions."""

    def __init__(self, vocab_size, tagset_size):
        super().__init__()
        self.embed = nn.Embedding(vocab_size + 1, EMBEDDING_DIM, padding_idx=vocab_size)
        self.lstm = nn.LSTM(
            EMBEDDING_DIM, HIDDEN_DIM // 2, batch_first=True, bidirectional=True, num_layers=2
        )
        self.out = nn.Linear(HIDDEN_DIM, tagset_size)

    def forward(self, batch, lengths):
        packed = pack_padded_sequence(
            self.embed(batch), lengths, batch_first=True, enforce_sorted=False
        )
        hidden, (h_n, c_n) = self.lstm(packed)
        padded, _ = pad_packed_sequence(hidden, batch_first=True)
        return self.out(padded)


pad = len(word_to_ix)
words = [prepare_sequence(s, word_to_ix) for s, _ in training_data]
tags = [prepare_sequence(t, tag_to_ix) for _, t in training_data]
lengths = torch.tensor([len(w) for w in words])
batch = pad_sequence(words, batch_first=True, padding_value=pad)
target = pad_sequence(tags, batch_first=True, padding_value=-100)
bi = BiTagger(len(word_to_ix), len(tag_to_ix))
criterion = nn.CrossEntropyLoss(ignore_index=-100)
adam = optim.Adam(bi.parameters(), lr=0.05)
for step in range(25):
    adam.zero_grad()
    logits = bi(batch, lengths)
    batch_loss = criterion(logits.transpose(1, 2), target)
    batch_loss.backward()
    adam.step()
mask = target != -100
accuracy = (logits.argmax(dim=-1)[mask] == target[mask]).float().mean().item()

assert loss.item() < first
assert tagged == ["DET", "NN", "V", "DET", "NN"], tagged
assert accuracy == 1.0, accuracy
