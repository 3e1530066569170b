"""A program for NumPy: physics."""

import numpy as np
from numpy import pi, sin, cos


# leapfrog nbody (Mocz), lattice Boltzmann (Mocz), Crank-Nicolson heat, Lorenz RK4, 1-D Schrödinger
def getAcc(pos, mass, G, softening):
    x = pos[:, 0:1]
    y = pos[:, 1:2]
    z = pos[:, 2:3]
    dx = x.T - x
    dy = y.T - y
    dz = z.T - z
    inv_r3 = dx**2 + dy**2 + dz**2 + softening**2
    inv_r3[inv_r3 > 0] = inv_r3[inv_r3 > 0] ** (-1.5)
    ax = G * (dx * inv_r3) @ mass
    ay = G * (dy * inv_r3) @ mass
    az = G * (dz * inv_r3) @ mass
    return np.hstack((ax, ay, az))


N = 10
mass = 20.0 * np.ones((N, 1)) / N
ang = 2 * pi * np.arange(N) / N
pos = np.column_stack((cos(ang), sin(ang), 0.1 * sin(3 * ang)))
vel = np.cross(pos, [0, 0, -1.0])
vel -= np.mean(mass * vel, 0) / np.mean(mass)
acc = getAcc(pos, mass, 1.0, 0.1)
save = np.zeros((N, 3, 6))
save[:, :, 0] = pos
for i in range(5):
    vel += acc * 0.01 / 2.0
    pos += vel * 0.01
    acc = getAcc(pos, mass, 1.0, 0.1)
    vel += acc * 0.01 / 2.0
    save[:, :, i + 1] = pos
print((0.5 * np.sum(np.sum(mass * vel**2))).round(8), save[..., -1].sum(axis=0).round(8))
Nx, Ny, tau = 24, 12, 0.6
cxs = np.array([0, 0, 1, 1, 1, 0, -1, -1, -1])
cys = np.array([0, 1, 1, 0, -1, -1, -1, 0, 1])
weights = np.array([4 / 9, 1 / 9, 1 / 36, 1 / 9, 1 / 36, 1 / 9, 1 / 36, 1 / 9, 1 / 36])
idxs = np.arange(9)
F = np.ones((Ny, Nx, 9))
X, Y = np.meshgrid(range(Nx), range(Ny))
F[:, :, 3] += 2 * (1 + 0.2 * np.cos(2 * np.pi * X / Nx * 4))
rho = np.sum(F, 2)
for i in idxs:
    F[:, :, i] *= 100 / rho
cylinder = (X - Nx / 4) ** 2 + (Y - Ny / 2) ** 2 < (Ny / 4) ** 2
for it in range(4):
    for i, cx, cy in zip(idxs, cxs, cys):
        F[:, :, i] = np.roll(F[:, :, i], cx, axis=1)
        F[:, :, i] = np.roll(F[:, :, i], cy, axis=0)
    bndryF = F[cylinder, :]
    bndryF = bndryF[:, [0, 5, 6, 7, 8, 1, 2, 3, 4]]
    rho = np.sum(F, 2)
    ux = np.sum(F * cxs, 2) / rho
    uy = np.sum(F * cys, 2) / rho
    Feq = np.zeros(F.shape)
    for i, cx, cy, w in zip(idxs, cxs, cys, weights):
        Feq[:, :, i] = (
            rho
            * w
            * (
                1
                + 3 * (cx * ux + cy * uy)
                + 9 * (cx * ux + cy * uy) ** 2 / 2
                - 3 * (ux**2 + uy**2) / 2
            )
        )
    F += -(1.0 / tau) * (F - Feq)
    F[cylinder, :] = bndryF
ux[cylinder] = 0
uy[cylinder] = 0
vort = (np.roll(ux, -1, axis=0) - np.roll(ux, 1, axis=0)) - (
    np.roll(uy, -1, axis=1) - np.roll(uy, 1, axis=1)
)
vort[cylinder] = np.nan
print(np.nanmax(vort).round(8), np.nanmean(np.abs(vort)).round(8), np.isnan(vort).sum())
n = 20
A = np.diag(np.full(n, 2.0)) + np.diag(np.full(n - 1, -1.0), 1) + np.diag(np.full(n - 1, -1.0), -1)
I = np.identity(n)
u = np.exp(-(np.linspace(-3, 3, n) ** 2))
for _ in range(3):
    u = np.linalg.solve(I + 0.1 * A, (I - 0.1 * A) @ u)
print(
    u.sum().round(10),
    np.linalg.cond(A).round(6),
    np.linalg.matrix_rank(A),
    np.linalg.slogdet(A)[1].round(8),
)


def lorenz(s):
    x, y, z = s
    return np.array([10 * (y - x), x * (28 - z) - y, x * y - 8 / 3 * z])


s = np.array([1.0, 1.0, 1.0])
traj = []
for _ in range(20):
    k1 = lorenz(s)
    k2 = lorenz(s + 0.005 * k1)
    k3 = lorenz(s + 0.005 * k2)
    k4 = lorenz(s + 0.01 * k3)
    s = s + 0.01 / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
    traj.append(s)
print(np.array(traj)[-1].round(8), np.asarray(traj).shape, np.vstack(traj).mean(axis=0).round(8))
xg = np.linspace(-5, 5, 64, endpoint=False)
dx = xg[1] - xg[0]
k = 2 * np.pi * np.fft.fftfreq(64, d=dx)
psi = np.exp(-(xg**2) / 2 + 2j * xg)
psi /= np.sqrt(np.sum(np.abs(psi) ** 2) * dx)
for _ in range(5):
    psi = psi * np.exp(-0.5j * 0.5 * xg**2 * 0.01)
    psi = np.fft.ifft(np.exp(-0.5j * k**2 * 0.01) * np.fft.fft(psi))
    psi *= np.exp(-0.5j * 0.5 * xg**2 * 0.01)
print(
    (np.sum(np.abs(psi) ** 2) * dx).round(10),
    np.real(np.vdot(psi, xg * psi) * dx).round(8),
    np.angle(psi[32]).round(8),
)
