"""Rows of `tools.cuda_bars`: they run, fail one by one, and go on where they stopped."""

import json
import time
from types import SimpleNamespace

import pytest

import numus as nm
from tools.cuda_bars import __main__ as program
from tools.cuda_bars.bars import Bar, Figure, distance


@pytest.fixture(autouse=True)
def default_device():
    before = nm.default_device()
    yield
    nm.set_default_device(before)


def bars(bench):
    def fast(bench):
        yield Figure("fast", 1.5, 1.0, ms={"numus": 2.0})
        yield Figure("small", 9.5, 9.0, "GiB", at_most=True)

    def broken(bench):
        raise ValueError("out of\nshape")

    def slow(bench):
        time.sleep(5)
        yield Figure("slow", 1.0, 1.0)

    yield Bar("a", "slow", slow, order=2)
    yield Bar("b", "broken", broken)
    yield Bar("a", "fast", fast, order=0)


def test_rows_fail_alone_and_runs_are_resumed(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(program, "FAMILIES", [SimpleNamespace(bars=bars)])
    monkeypatch.setattr(program, "Bench", lambda *a, **named: None)
    out = tmp_path / "bars.jsonl"
    lines = program.main(["--dry", "--out", str(out), "--row-seconds", "0.2"])
    told = capsys.readouterr().out
    assert [line["name"] for line in lines] == ["fast", "small", "broken", "slow"]
    assert [line.get("reached") for line in lines] == [True, False, None, None]
    assert "ValueError: out of" in lines[2]["failed"]
    assert "TimeoutError" in lines[3]["failed"]
    assert "a: 1 of 3 reached, 1 did not run" in told
    assert "| a | small | 9.5 GiB | ≤ 9 | **miss** |" in told
    kept = [line for line in out.read_text().splitlines(True) if "broken" not in line]
    out.write_text("".join(kept))
    again = program.main(["--dry", "--resume", str(out)])
    assert [line["name"] for line in again] == ["fast", "small", "slow", "broken"]
    assert [json.loads(line) for line in out.read_text().splitlines()] == again


def run(*arguments):
    pytest.importorskip("torch")
    lines = program.main(["--dry", "--minutes", "30", "--row-seconds", "600", *arguments])
    assert lines
    assert not [line for line in lines if "failed" in line]


@pytest.mark.filterwarnings("ignore")
def test_some_rows_run():
    run("--only", "131072x128 fftconvolve cholesky_10000x8")


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.filterwarnings("ignore")
def test_all_rows_run():
    run()


def test_distances_compare_infinities_and_nans():
    torch = pytest.importorskip("torch")
    x = torch.tensor([1.0, 2.0, float("inf"), -float("inf"), float("nan")])
    assert distance(x, x.clone()) == 0
    for i in range(2, 5):
        y = x.clone()
        y[i] = 1.0
        assert distance(x, y) == distance(y, x) == float("inf")
    y = x.clone()
    y[0] = 2.0
    assert distance(y, x) == pytest.approx(5**-0.5)
