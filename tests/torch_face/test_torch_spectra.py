"""Spectra, running extremes and sparse products of `numus.torch`, by their definitions."""

import numpy as np

import numus.torch as torch


def test_short_time_spectra_are_those_of_the_frames_and_go_back():
    x = np.random.default_rng(0).normal(size=(2, 200)).astype(np.float32)
    w = np.hanning(32).astype(np.float32)
    found = torch.stft(torch.tensor(x), 32, 8, window=torch.tensor(w), return_complex=True)
    padded = np.pad(x, ((0, 0), (16, 16)), "reflect")
    frames = np.lib.stride_tricks.sliding_window_view(padded, 32, axis=1)[:, ::8] * w
    wanted = np.fft.rfft(frames).transpose(0, 2, 1)
    np.testing.assert_allclose(found.numpy(), wanted, atol=2e-4)
    back = torch.istft(found, 32, 8, window=torch.tensor(w), length=200)
    np.testing.assert_allclose(back.numpy(), x, atol=1e-4)


def test_running_extremes_have_indices_of_the_last_of_equals():
    x = torch.tensor([[1.0, 3.0, 2.0, 3.0], [4.0, 0.0, 5.0, 1.0]])
    values, indices = torch.cummax(x, 1)
    assert (values.tolist(), indices.tolist()) == (
        [[1, 3, 3, 3], [4, 4, 5, 5]],
        [[0, 1, 1, 3], [0, 0, 2, 2]],
    )
    assert x.cummin(1).indices.tolist() == [[0, 0, 0, 0], [0, 1, 1, 1]]


def test_sparse_products():
    s = torch.sparse_coo_tensor(torch.tensor([[0, 1], [1, 0]]), torch.tensor([2.0, 3.0]), (2, 2))
    dense = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert torch.sparse.mm(s, dense).tolist() == [[6, 8], [3, 6]]
    assert torch.sparse.addmm(dense, s, dense, beta=2.0).tolist() == [[8, 12], [9, 14]]
    assert torch.sparse.sum(s).item() == 5
