"""Parallel device tests: each runs once, and all outcomes are reported."""

import pytest

from tools.device_tests import run_tests

TESTS = """
import os, time, pytest

@pytest.mark.parametrize("n", range(30))
def test_passes(n):
    assert os.environ["NUMUS_DEVICE"] == "cpu"
    with open(os.environ["NUMUS_TEST_SEEN"], "a") as file:
        file.write(f"{n} ")

def test_fails():
    assert 1 == 2, "one is not two"

def test_is_skipped():
    pytest.skip("for a reason")

def test_ends_the_process():
    os._exit(3)

@pytest.mark.parametrize("n", range(40))
def test_takes_long(n):
    time.sleep(0.02)
"""


def given(tmp_path, monkeypatch, text):
    path = tmp_path / "test_given.py"
    path.write_text(text)
    monkeypatch.setenv("NUMUS_TEST_SEEN", str(tmp_path / "seen"))
    return path


@pytest.mark.slow
def test_each_test_runs_once(tmp_path, monkeypatch):
    path = given(tmp_path, monkeypatch, TESTS.split("def test_ends")[0])
    lines, text = run_tests(3, 60, "cpu", [str(path)], "", "of a file", default=True)
    assert "32 tests of a file on the device: 30 passed, 1 failed, 1 skipped, 0 not run" in lines[0]
    assert len(lines) == 2
    assert "test_given.py::test_fails: AssertionError: one is not two" in lines[1]
    assert "    1  Skipped: for a reason" in text
    assert sorted(map(int, (tmp_path / "seen").read_text().split())) == list(range(30))


@pytest.mark.slow
def test_crashes_and_timeouts_are_reported(tmp_path, monkeypatch):
    path = given(tmp_path, monkeypatch, TESTS)
    lines, _ = run_tests(2, 60, "cpu", [str(path)], "", "of a file", default=True)
    (ended,) = [line for line in lines if "test_ends_the_process" in line]
    assert "did not finish" in ended
    lines, _ = run_tests(2, 0.0, "cpu", [str(path)], "", "of a file", default=True)
    assert "73 tests" in lines[0]
    assert "73 not run" in lines[0]
    assert "test_given.py: 73 not run" in lines[1]
