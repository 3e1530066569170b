"""A program for NumPy: images."""

import numpy as np
from numpy.linalg import svd, norm
from numpy.fft import fft2, ifft2, fftshift, ifftshift, rfft, irfft, rfftfreq

# SVD image compression
y, x = np.mgrid[-1:1:32j, -1:1:40j]
img = np.clip(128 + 100 * np.sin(6 * x) * np.cos(4 * y) + 30 * (x**2 + y**2 < 0.4), 0, 255).astype(
    np.uint8
)
A = img.astype(float) / 255.0
U, S, Vt = svd(A, full_matrices=False)
for r in (1, 3, 8):
    approx = U[:, :r] @ np.diag(S[:r]) @ Vt[:r, :]
    err = norm(A - approx, "fro") / norm(A)
    psnr = 10 * np.log10(1 / np.mean((A - approx) ** 2))
    print(
        f"rank {r}: error {err:.4f} psnr {psnr:.2f} energy {np.cumsum(S**2)[r - 1] / np.sum(S**2):.5f}"
    )
rgb = np.stack([img, img[::-1], np.flipud(img)], axis=-1)
gray = np.dot(rgb[..., :3], [0.2989, 0.5870, 0.1140])
print(gray.shape, gray.dtype, round(float(gray.mean()), 6))
# FFT filter
rng = np.random.default_rng(0)
t = np.arange(256) / 256.0
sig = np.sin(2 * np.pi * 5 * t) + 0.5 * np.sin(2 * np.pi * 40 * t) + 0.05 * np.cos(300 * t)
F = rfft(sig)
f = rfftfreq(len(sig), d=1 / 256)
F[(f > 20)] = 0
clean = irfft(F, n=len(sig))
print(np.abs(clean - np.sin(2 * np.pi * 5 * t)).max() < 0.1, f[np.argmax(np.abs(F))])
G = fftshift(fft2(A))
rows, cols = A.shape
crow, ccol = rows // 2, cols // 2
mask = np.ones((rows, cols), np.uint8)
mask[crow - 3 : crow + 4, ccol - 3 : ccol + 4] = 0
back = np.abs(ifft2(ifftshift(G * mask)))
print(back.shape, round(float(back.std()), 6))
# histogram equalisation, convolution with stride tricks, bilinear resize
hist, bins = np.histogram(img.flatten(), 256, [0, 256])
cdf = hist.cumsum()
cdf_m = (cdf - cdf.min()) * 255 / (cdf.max() - cdf.min())
eq = cdf_m.astype("uint8")[img]
print(eq.min(), eq.max(), eq.dtype)
from numpy.lib.stride_tricks import sliding_window_view

K = np.array([[1, 2, 1], [0, 0, 0], [-1, -2, -1]])
gx = np.einsum("ijkl,kl->ij", sliding_window_view(A, (3, 3)), K)
gy = (sliding_window_view(A, (3, 3)) * K.T).sum(axis=(2, 3))
mag = np.hypot(gx, gy)
print(mag.shape, round(float(mag.max()), 6), np.percentile(mag, [5, 50, 95]).round(5))
padded = np.pad(A, ((1, 1), (2, 2)), mode="reflect")
print(padded.shape, np.pad(A, 1, "edge").sum().round(6))
