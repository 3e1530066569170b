"""Programs of users under a strict type checker: errors where they are, and none elsewhere."""

import pathlib
import re

import pytest

FOLDER = pathlib.Path(__file__).parent / "typing"
PROGRAMS = sorted(p for p in FOLDER.glob("*.py") if p.stem != "mistakes")


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    api = pytest.importorskip("mypy.api")
    cache = tmp_path_factory.mktemp("mypy")
    paths = [str(p) for p in FOLDER.glob("*.py")]
    options = ["--strict", "--config-file=", f"--cache-dir={cache}", "--ignore-missing-imports"]
    out, err, _ = api.run([*options, *paths])
    assert not err
    return [m.groups() for m in re.finditer(r"(\w+)\.py:(\d+): error: (.*)", out)]


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.stem)
def test_correct_programs_have_no_error(program, report):
    assert [e for e in report if e[0] == program.stem] == []


@pytest.mark.slow
def test_mistakes_are_reported(report):
    lines = (FOLDER / "mistakes.py").read_text().splitlines()
    wanted = {number for number, line in enumerate(lines, 1) if "# error" in line}
    assert {int(number) for stem, number, _ in report if stem == "mistakes"} == wanted


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.stem)
def test_programs_run(program, capsys):
    namespace = {"__name__": "__main__"}
    exec(compile(program.read_text(), str(program), "exec"), namespace)
    assert capsys.readouterr().out
