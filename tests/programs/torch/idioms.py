"""Idioms: graph convolutions, L-BFGS, functions with derivatives of their own, torch.func, packing."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.func import functional_call, vmap, grad, jacrev, hessian, stack_module_state

torch.manual_seed(0)
# GCN by sparse adjacency
N = 30
edge_index = torch.randint(0, N, (2, 80))
A = torch.zeros(N, N)
A[edge_index[0], edge_index[1]] = 1
A = ((A + A.t()) > 0).float()
A.fill_diagonal_(1)
deg = A.sum(1)
D = torch.diag(deg.pow(-0.5))
An = D @ A @ D


class GCN(nn.Module):
    def __init__(self, i, h, o):
        super().__init__()
        self.w1 = nn.Parameter(torch.empty(i, h))
        self.w2 = nn.Parameter(torch.empty(h, o))
        nn.init.kaiming_uniform_(self.w1, a=5**0.5)
        nn.init.xavier_normal_(self.w2, gain=nn.init.calculate_gain("relu"))

    def forward(self, x):
        return F.log_softmax(
            An @ F.dropout(F.relu(An.mm(x).mm(self.w1)), 0.2, self.training) @ self.w2, dim=-1
        )


x = torch.eye(N)
y = torch.arange(N) % 3
m = GCN(N, 8, 3)
opt = torch.optim.Adam(m.parameters(), lr=0.05, weight_decay=5e-4)
mask = torch.rand(N) < 0.7
for e in range(30):
    opt.zero_grad()
    l = F.nll_loss(m(x)[mask], y[mask])
    l.backward()
    opt.step()
acc = (m.eval()(x).argmax(-1) == y)[mask].float().mean()
print("gcn", l.item(), acc.item())
# LBFGS with closure
w = torch.nn.Parameter(torch.tensor([-1.2, 1.0]))
o = torch.optim.LBFGS([w], lr=1, max_iter=40, line_search_fn="strong_wolfe")


def closure():
    o.zero_grad()
    l = (1 - w[0]) ** 2 + 100 * (w[1] - w[0] ** 2) ** 2
    l.backward()
    return l


for _ in range(3):
    o.step(closure)
print("lbfgs", w.tolist())
assert torch.allclose(w, torch.ones(2), atol=1e-2)


# custom Function
class Swish(torch.autograd.Function):
    @staticmethod
    def forward(ctx, i):
        r = i * torch.sigmoid(i)
        ctx.save_for_backward(i)
        return r

    @staticmethod
    def backward(ctx, g):
        (i,) = ctx.saved_tensors
        s = torch.sigmoid(i)
        return g * (s * (1 + i * (1 - s)))


t = torch.randn(5, dtype=torch.double, requires_grad=True)
assert torch.autograd.gradcheck(Swish.apply, (t,), eps=1e-6, atol=1e-4)
# functional
net = nn.Linear(3, 1)
params = dict(net.named_parameters())


def loss(params, x, y):
    return F.mse_loss(functional_call(net, params, (x.unsqueeze(0),)).squeeze(0), y)


gs = vmap(grad(loss), in_dims=(None, 0, 0))(params, torch.randn(7, 3), torch.randn(7, 1))
print({k: tuple(v.shape) for k, v in gs.items()})
print(hessian(lambda z: (z**3).sum())(torch.tensor([1.0, 2.0])))
# RNN variants, packing
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

gru = nn.GRU(4, 6, num_layers=2, batch_first=True, bidirectional=True, dropout=0.1)
out, h = gru(pack_padded_sequence(torch.randn(3, 5, 4), torch.tensor([5, 3, 2]), batch_first=True))
o2, lens = pad_packed_sequence(out, batch_first=True)
print(o2.shape, h.shape, lens)
# indexing idioms
a = torch.arange(12.0).view(3, 4)
idx = a.topk(2, dim=1).indices
print(
    a.gather(1, idx),
    torch.scatter(torch.zeros(3, 4), 1, idx, 1.0),
    a[a > 5],
    a[..., None].shape,
    torch.where(a > 5, a, torch.zeros(())),
)
a[1] += 5
a[:, 2].mul_(-1)
a.index_fill_(0, torch.tensor([0]), 9)
b = a.clone().requires_grad_()
(b.std(dim=1).sum() + b.logsumexp(0).sum()).backward()
print(b.grad.abs().sum())
v, i = a.sort(dim=1, descending=True)
print(
    torch.stack([v[:, 0], a.max(1)[0]]),
    torch.einsum("ij,kj->ik", a, a).trace(),
    torch.cdist(a, a).shape,
    a.unfold(1, 2, 1).shape,
)
print(
    torch.bincount(torch.tensor([1, 1, 3]), minlength=5),
    torch.unique(torch.tensor([3, 1, 1]), return_counts=True),
    torch.cumsum(a, 0)[-1],
    a.chunk(2, 1)[0].shape,
    torch.meshgrid(torch.arange(2), torch.arange(3), indexing="ij")[0].shape,
)
print(
    F.one_hot(torch.tensor([0, 2]), 3),
    F.cosine_similarity(a[0:1], a),
    F.normalize(a, dim=1).norm(dim=1),
    torch.nan_to_num(torch.tensor([float("nan"), 1.0])),
)
