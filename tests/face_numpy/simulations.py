"""Programs as their authors write them with NumPy, for a test to run with both libraries.

Each is the text of a module whose first line imports NumPy.
"""

GAME_OF_LIFE = '''
import numpy as np


def life_step(X):
    """Game of life step using generator expressions"""
    nbrs_count = sum(np.roll(np.roll(X, i, 0), j, 1)
                     for i in (-1, 0, 1) for j in (-1, 0, 1)
                     if (i != 0 or j != 0))
    return (nbrs_count == 3) | (X & (nbrs_count == 2))


def main():
    X = np.zeros((12, 12), dtype=bool)
    glider = np.array([[0, 1, 0], [0, 0, 1], [1, 1, 1]], dtype=bool)
    X[1:4, 1:4] = glider
    history = []
    for _ in range(8):
        X = life_step(X)
        history.append(int(X.sum()))
    where = np.argwhere(X)
    return history, where, X
'''

HEAT = """
import numpy as np


def main(n=24, steps=60):
    dx = 1.0 / (n - 1)
    alpha = 0.1
    dt = 0.2 * dx**2 / alpha
    u = np.zeros((n, n))
    u[0, :] = 100.0
    u[:, -1] = np.linspace(100, 0, n)
    x, y = np.meshgrid(np.linspace(0, 1, n), np.linspace(0, 1, n))
    u += 50 * np.exp(-((x - 0.5) ** 2 + (y - 0.5) ** 2) / 0.02)
    errors = []
    for step in range(steps):
        un = u.copy()
        u[1:-1, 1:-1] = un[1:-1, 1:-1] + alpha * dt / dx**2 * (
            un[2:, 1:-1] + un[:-2, 1:-1] + un[1:-1, 2:] + un[1:-1, :-2] - 4 * un[1:-1, 1:-1]
        )
        if step % 20 == 0:
            errors.append(np.abs(u - un).max())
            if errors[-1] < 1e-8:
                break
    hot = u[u > u.mean()]
    gy, gx = np.gradient(u, dx)
    return u, np.array(errors), hot.size, np.hypot(gx, gy).max(), np.percentile(u, [10, 50, 90])
"""

N_BODY = """
import numpy as np


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


def getEnergy(pos, vel, mass, G):
    KE = 0.5 * np.sum(np.sum(mass * vel**2))
    dx = pos[:, 0:1].T - pos[:, 0:1]
    dy = pos[:, 1:2].T - pos[:, 1:2]
    dz = pos[:, 2:3].T - pos[:, 2:3]
    inv_r = np.sqrt(dx**2 + dy**2 + dz**2)
    inv_r[inv_r > 0] = 1.0 / inv_r[inv_r > 0]
    PE = G * np.sum(np.sum(np.triu(-(mass * mass.T) * inv_r, 1)))
    return KE, PE


def main(N=8, steps=10):
    t = np.arange(N)
    mass = 20.0 * np.ones((N, 1)) / N
    pos = np.column_stack([np.cos(t), np.sin(2 * t), 0.1 * t])
    vel = np.column_stack([np.sin(3 * t), np.cos(t), np.zeros(N)])
    vel -= np.mean(mass * vel, 0) / np.mean(mass)
    acc = getAcc(pos, mass, 1.0, 0.1)
    KE_save = np.zeros(steps + 1)
    PE_save = np.zeros(steps + 1)
    KE_save[0], PE_save[0] = getEnergy(pos, vel, mass, 1.0)
    pos_save = np.zeros((N, 3, steps + 1))
    pos_save[:, :, 0] = pos
    for i in range(steps):
        vel += acc * 0.01 / 2.0
        pos += vel * 0.01
        acc = getAcc(pos, mass, 1.0, 0.1)
        vel += acc * 0.01 / 2.0
        KE_save[i + 1], PE_save[i + 1] = getEnergy(pos, vel, mass, 1.0)
        pos_save[:, :, i + 1] = pos
    return pos_save, KE_save, PE_save
"""

PERCOLATION = """
import numpy as np


def percolates(grid):
    reach = np.zeros_like(grid)
    reach[0] = grid[0]
    while True:
        grown = reach.copy()
        grown[1:] |= reach[:-1]
        grown[:-1] |= reach[1:]
        grown[:, 1:] |= reach[:, :-1]
        grown[:, :-1] |= reach[:, 1:]
        grown &= grid
        if (grown == reach).all():
            return bool(reach[-1].any())
        reach = grown


def main(n=10, trials=12):
    rng = np.random.default_rng(7)
    shares = []
    for p in (0.3, 0.9):
        hits = [percolates(rng.random((n, n)) < p) for _ in range(trials)]
        shares.append(np.mean(hits))
    points = rng.uniform(-1, 1, size=(4000, 2))
    inside = (points**2).sum(axis=1) <= 1
    return shares, 4 * inside.mean()
"""

BOIDS = """
import numpy as np


def limit(v, top):
    speed = np.linalg.norm(v, axis=1, keepdims=True)
    return np.where(speed > top, v * top / np.maximum(speed, 1e-12), v)


def main(n=12, steps=5):
    t = np.arange(n)
    pos = np.stack([np.cos(t), np.sin(2 * t)], axis=1) * 10
    vel = np.column_stack((np.sin(t), np.cos(t)))
    for _ in range(steps):
        delta = pos[:, np.newaxis] - pos[np.newaxis]
        distance = np.hypot(delta[..., 0], delta[..., 1])
        np.fill_diagonal(distance, np.inf)
        near = distance < 8
        count = np.maximum(near.sum(axis=1), 1).reshape(-1, 1)
        alignment = np.dot(near, vel) / count - vel
        cohesion = near.astype(float) @ pos / count - pos
        close = (distance < 2)[..., None]
        push = delta / np.maximum(distance, 1e-9)[..., None] ** 2
        separation = np.add.reduce(np.where(close, push, 0), axis=1)
        vel += limit(alignment, 0.3) + 0.05 * cohesion + separation
        vel = limit(vel, 2.0)
        pos = (pos + vel + 20) % 40 - 20
    order = np.abs(np.mean(vel[:, 0] + 1j * vel[:, 1])) / np.linalg.norm(vel, axis=1).mean()
    return pos, vel, order
"""
