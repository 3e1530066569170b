"""A line that is written over, and tables: what streams get."""

import io
import sys

import pytest

from numus import terminal
from numus.models.checkpoint import progress_bar
from numus.optim.training.progress import Bar


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("stream", [Terminal, io.StringIO])
def test_progress_goes_to_terminals_only(stream, monkeypatch):
    monkeypatch.setattr(terminal, "_SECONDS_BETWEEN", 0)
    monkeypatch.setattr(sys, "stdout", stream())
    monkeypatch.setattr(sys, "stderr", stream())
    bar = Bar(3)
    for total, done in ((4, 2), (None, 7)):
        bar.begin(1, total, 0)
        bar.show(done, 0.5, 1e-3, 1000, 2_000_000)
    bar.end({"step": 4, "loss": 0.25, "memory": 1500, "seconds": 2.0, "items_per_s": 10})
    with progress_bar(None, "weights", 2000) as advance:
        advance(500)
        advance(1500)
    out, err = sys.stdout.getvalue(), sys.stderr.getvalue()
    watched = stream is Terminal
    assert ("epoch 1/3  [###############...............] 2/4" in out) == watched
    assert ("epoch 1/3  7  loss 0.5  lr 0.001  1,000/s  2 MB" in out) == watched
    assert out.endswith("loss 0.25  10/s  1.5 KB  2.0 s\n")
    assert ("weights [" in err and "2 KB of 2 KB" in err) == watched
    assert watched or not err


def test_a_shorter_text_leaves_nothing_of_a_longer_one(monkeypatch):
    monkeypatch.setenv("COLUMNS", "11")
    stream = io.StringIO()
    with terminal.Line(stream, shown=True) as line:
        line.show("a long text is cut")
        line.show("not yet")
        line.show("short", now=True)
    assert stream.getvalue() == "\ra long tex\rshort     \r     \r"


def test_tables_fold_the_widest_column():
    rows = [["a", "some words that are long", "1"], ["b", "", "22"]]
    text = terminal.table("", ["name", "what", "n"], rows, numbers=["n"], width=24)
    lines = text.splitlines()
    assert max(map(len, lines)) <= 24
    assert lines[2].split() == ["a", "some", "words", "1"]
    assert lines[-1] == "b" + " " * 21 + "22"
    narrow = terminal.table("", ["x"], [["word " * 9]], width=10).splitlines()
    assert all(len(line) <= 10 for line in narrow)


def test_what_is_left_follows_the_pace(monkeypatch):
    monkeypatch.setattr(terminal.time, "monotonic", lambda: 110.0)
    assert terminal.left_text(100.0, 0.25) == "0:00:30 left"
    assert terminal.left_text(100.0, 1.0) == ""
