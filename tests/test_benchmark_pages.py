"""Benchmark tables as text and as Markdown, and the CPU page."""

from __future__ import annotations

import sys

import pytest

from bench.table import Table
from tools import cpu_report


def test_tables_as_text_and_markdown(capsys):
    for markdown in (False, True):
        table = Table(("ms", "numus", "torch"), (6, 5, 7), markdown)
        table.row("add", "1.0", "2.0")
        table.note("done")
    text = ["ms     numus   torch", "add      1.0     2.0", "done"]
    page = ["| ms | numus | torch |", "| --- | ---: | ---: |", "| add | 1.0 | 2.0 |", "", "done"]
    assert capsys.readouterr().out.splitlines() == text + page


def test_unselected_sections_are_kept(tmp_path, monkeypatch, capsys):
    page = tmp_path / "cpu.md"
    tables = iter(["| first |", "| second |", "| third |"])
    monkeypatch.setattr(cpu_report, "table", lambda arguments, seconds: next(tables))

    def run(parts):
        monkeypatch.setattr(sys, "argv", ["cpu_report", "--out", str(page), "--only", parts])
        cpu_report.main()
        return list(cpu_report.sections(page).items())

    run("memory")
    run("jit")
    (jit, inside), (memory, steps) = run("memory")
    assert (jit, memory) == (cpu_report.SECTIONS["jit"][0], cpu_report.SECTIONS["memory"][0])
    assert inside.endswith("| second |")
    assert steps.endswith("| third |")
    with pytest.raises(SystemExit):
        run("nothing")
    assert "no such sections: nothing" in capsys.readouterr().err
