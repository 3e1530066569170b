"""A program for NumPy: learning."""

import numpy as np

# k-means, PCA, logistic regression, kNN, perceptron, kernel ridge, HMM viterbi
rng = np.random.default_rng(7)
base = np.repeat(np.array([[0, 0], [5, 5], [0, 5]]), 20, axis=0) + np.tile(
    np.linspace(-1, 1, 20)[:, None], (3, 2)
) * [1, -0.5]


class KMeans:
    def __init__(self, k, iters=20):
        self.k, self.iters = k, iters

    def fit(self, X):
        self.centroids = X[[0, 25, 50]].copy()
        for _ in range(self.iters):
            d = np.sqrt(((X - self.centroids[:, np.newaxis]) ** 2).sum(axis=2))
            labels = np.argmin(d, axis=0)
            new = np.array([X[labels == k].mean(axis=0) for k in range(self.k)])
            if np.all(new == self.centroids):
                break
            self.centroids = new
        self.labels_ = labels
        self.inertia_ = np.min(d, axis=0).sum()
        return self


km = KMeans(3).fit(base)
print(km.centroids.round(6).tolist(), np.bincount(km.labels_), round(float(km.inertia_), 6))
Xc = base - base.mean(0)
cov = np.cov(Xc, rowvar=False)
w, v = np.linalg.eigh(cov)
order = np.argsort(w)[::-1]
w = w[order]
print(w.round(6), (Xc @ v[:, order[:1]]).var().round(6))
X = np.c_[np.ones(len(base)), base]
yb = (km.labels_ == 1).astype(float)
theta = np.zeros(3)


def sigmoid(z):
    return 1.0 / (1.0 + np.exp(-z))


for _ in range(200):
    h = sigmoid(X.dot(theta))
    theta -= 0.1 * X.T.dot(h - yb) / yb.size
print(theta.round(6), ((sigmoid(X @ theta) > 0.5) == yb).mean())
d2 = np.sum(base**2, 1)[:, None] - 2 * base @ base.T + np.sum(base**2, 1)[None]
np.fill_diagonal(d2, np.inf)
nn = np.argpartition(d2, 3, axis=1)[:, :3]
vote = np.apply_along_axis(lambda r: np.bincount(r, minlength=3).argmax(), 1, km.labels_[nn])
print((vote == km.labels_).mean())
A = np.array([[0.7, 0.3], [0.4, 0.6]])
B = np.array([[0.5, 0.4, 0.1], [0.1, 0.3, 0.6]])
pi = np.array([0.6, 0.4])
obs = [0, 1, 2, 2]
T1 = np.zeros((2, 4))
T2 = np.zeros((2, 4), dtype=int)
T1[:, 0] = pi * B[:, obs[0]]
for i in range(1, 4):
    T1[:, i] = np.max(T1[:, i - 1] * A.T * B[np.newaxis, :, obs[i]].T, 1)
    T2[:, i] = np.argmax(T1[:, i - 1] * A.T, 1)
print(T1[:, -1], T2.tolist())
x = np.linspace(0, 1, 25)
p = np.polyfit(x, np.sin(3 * x), 3)
print(np.polyval(p, 0.5).round(8), np.poly1d(p)(0.25).round(8))
V = np.vander(x, 4)
coef, res, rank, s = np.linalg.lstsq(V, np.sin(3 * x), rcond=None)
print(np.allclose(coef, p), rank)
tbl = np.zeros(5)
np.add.at(tbl, [0, 1, 1, 4], 1.5)
print(
    tbl,
    np.digitize([0.2, 6.4, 3.0, 1.6], np.array([0.0, 1.0, 2.5, 4.0, 10.0])),
    np.searchsorted([1, 2, 3], 2.5),
    np.interp(2.5, [1, 2, 3], [3, 2, 0]),
)
with np.errstate(divide="ignore", invalid="ignore"):
    r = np.where(x > 0, np.sin(x) / x, 1.0)
    print(r[:3].round(6))
print(
    np.gradient(x**2, x)[1:3].round(6),
    np.trapezoid(x**2, x).round(6),
    np.diff(x, n=2).round(10).sum(),
    np.convolve([1, 2, 3], [0, 1, 0.5]),
    np.cross([1, 0, 0], [0, 1, 0]),
    np.kron([1, 2], [1, 1]),
)
m, M = divmod(np.arange(7), 3)
print(m, M, np.set_printoptions(precision=3), x[:4], f"{x.mean():.3f} {x[3]:8.2e}")
one = np.eye(3)[[0, 2]]
print(
    one,
    np.tensordot(one, one, axes=([1], [1])),
    np.triu_indices(3, 1),
    np.ravel_multi_index(([1], [2]), (3, 4)),
)
np.testing.assert_allclose(one.sum(), 2)
assert np.isclose(0.1 + 0.2, 0.3)
for (i, j), val in np.ndenumerate(np.arange(4).reshape(2, 2)):
    pass
it = np.nditer(np.arange(3), flags=["f_index"])
print([int(q) for q in it])
print(np.array_split(np.arange(7), 3), np.lexsort(([1, 0], [0, 0])), np.unravel_index(5, (2, 3)))
import io, pickle, copy

buf = io.BytesIO()
np.savez(buf, a=x, b=one)
buf.seek(0)
z = np.load(buf)
print(sorted(z.keys() if isinstance(z, dict) else z.files), z["a"].shape)
y2 = pickle.loads(pickle.dumps(x))
assert (y2 == x).all() and copy.deepcopy(one).shape == (2, 3)
s = io.StringIO("1 2\n3 4")
print(np.loadtxt(s))
print(
    np.array2string(x[:3], precision=2),
    repr(np.float32(1.5)),
    np.arange(3, dtype="int8"),
    np.array([True, False]),
)
