"""A program for NumPy: cells."""

import numpy as np

# Game of life
rng = np.random.default_rng(42)


def step(X):
    nbrs = sum(
        np.roll(np.roll(X, i, 0), j, 1)
        for i in (-1, 0, 1)
        for j in (-1, 0, 1)
        if (i != 0 or j != 0)
    )
    return (nbrs == 3) | (X & (nbrs == 2))


X = np.zeros((16, 16), dtype=bool)
X[1, 2] = X[2, 3] = X[3, 1] = X[3, 2] = X[3, 3] = True
for _ in range(4):
    X = step(X)
print(X.sum(), np.argwhere(X).tolist())


def iterate(Z):
    N = (
        Z[0:-2, 0:-2]
        + Z[0:-2, 1:-1]
        + Z[0:-2, 2:]
        + Z[1:-1, 0:-2]
        + Z[1:-1, 2:]
        + Z[2:, 0:-2]
        + Z[2:, 1:-1]
        + Z[2:, 2:]
    )
    birth = (N == 3) & (Z[1:-1, 1:-1] == 0)
    survive = ((N == 2) | (N == 3)) & (Z[1:-1, 1:-1] == 1)
    Z[...] = 0
    Z[1:-1, 1:-1][birth | survive] = 1
    return Z


Z = np.zeros((8, 8), dtype=int)
Z[3, 2:5] = 1
Z = iterate(Z)
print(Z)


# Mandelbrot, Rougier's
def mandelbrot(xmin, xmax, ymin, ymax, xn, yn, maxiter, horizon=2.0):
    X = np.linspace(xmin, xmax, xn).astype(np.float32)
    Y = np.linspace(ymin, ymax, yn).astype(np.float32)
    C = X + Y[:, None] * 1j
    N = np.zeros_like(C, dtype=int)
    Z = np.zeros_like(C)
    for n in range(maxiter):
        I = abs(Z) < horizon
        N[I] = n
        Z[I] = Z[I] ** 2 + C[I]
    N[N == maxiter - 1] = 0
    return Z, N


Zm, N = mandelbrot(-2.25, +0.75, -1.25, +1.25, 30, 25, 20)
print(N.sum(), N.max(), Zm.dtype, np.unique(N, return_counts=True)[1][:4])


def mandelbrot_2(xmin, xmax, ymin, ymax, xn, yn, itermax, horizon=2.0):
    Xi, Yi = np.mgrid[0:xn, 0:yn]
    Xi, Yi = Xi.astype(np.uint32), Yi.astype(np.uint32)
    X = np.linspace(xmin, xmax, xn, dtype=np.float32)[Xi]
    Y = np.linspace(ymin, ymax, yn, dtype=np.float32)[Yi]
    C = X + Y * 1j
    N_ = np.zeros(C.shape, dtype=np.uint32)
    Z_ = np.zeros(C.shape, dtype=np.complex64)
    Xi.shape = Yi.shape = C.shape = xn * yn
    Z = np.zeros(C.shape, np.complex64)
    for i in range(itermax):
        if not len(Z):
            break
        np.multiply(Z, Z, Z)
        np.add(Z, C, Z)
        I = abs(Z) > horizon
        N_[Xi[I], Yi[I]] = i + 1
        Z_[Xi[I], Yi[I]] = Z[I]
        np.logical_not(I, I)
        Z = Z[I]
        Xi, Yi = Xi[I], Yi[I]
        C = C[I]
    return Z_.T, N_.T


print(mandelbrot_2(-2.25, 0.75, -1.25, 1.25, 20, 16, 15)[1].sum())
# Gray-Scott
U = np.ones((18, 18))
V = np.zeros((18, 18))
u, v = U[1:-1, 1:-1], V[1:-1, 1:-1]
u[...] = 1.0
U[7:11, 7:11] = 0.5
V[7:11, 7:11] = 0.25
for i in range(10):
    Lu = U[0:-2, 1:-1] + U[1:-1, 0:-2] - 4 * U[1:-1, 1:-1] + U[1:-1, 2:] + U[2:, 1:-1]
    Lv = V[0:-2, 1:-1] + V[1:-1, 0:-2] - 4 * V[1:-1, 1:-1] + V[1:-1, 2:] + V[2:, 1:-1]
    uvv = u * v * v
    u += 0.16 * Lu - uvv + 0.06 * (1 - u)
    v += 0.08 * Lv + uvv - (0.06 + 0.062) * v
print(round(float(U.sum()), 8), round(float(V.sum()), 8))
