"""NumPy's own tests, run against `numus.numpy`: the share that passes, in docs/conformance.md.

`python -m tools.numpy_tests` runs the files of the installed NumPy one after the other, each in a
process of its own; names of files (`test_numeric`) run those only, `-k` selects tests, `--write`
puts the rows into docs/conformance.md, where those of files that were not run stay. A test file is
copied with its imports rewritten: `numpy` is `numus.numpy` there. `tools/numpy_tests_deselected.py`
says which tests are left out, and why; `--reasons` counts them.
"""

from __future__ import annotations

import argparse
import ast
import datetime
import functools
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy

import numus.numpy
from tools.numpy_tests_deselected import IDENTIFIERS, MISSING_DTYPE, SOURCES

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "conformance.md"
FILES = """
    _core/tests/test_numeric _core/tests/test_umath _core/tests/test_indexing
    _core/tests/test_shape_base _core/tests/test_multiarray lib/tests/test_function_base
    lib/tests/test_shape_base lib/tests/test_index_tricks lib/tests/test_nanfunctions
    lib/tests/test_arraysetops linalg/tests/test_linalg fft/tests/test_pocketfft
    fft/tests/test_helper
""".split()
_MARKS = ("<!-- numpy tests: begin -->", "<!-- numpy tests: end -->")
_SECONDS_PER_TEST = 240  # of a machine that others use


class Face(ModuleType):
    """`numus.numpy`; classes and modules that it lacks are NumPy's: files can be imported."""

    def __getattr__(self, name: str) -> Any:
        try:
            return getattr(numus.numpy, name)
        except AttributeError:
            if isinstance(constant := getattr(numpy._core.umath, name, None), float):
                return constant
            found = getattr(numpy, name)
            if isinstance(found, (type, ModuleType)):
                return found
            raise


face = Face("numpy")
_PARTS = ("fft", "lib", "linalg", "random", "testing")


def named(module: str, name: str) -> Any:
    """What `from module import name` gives in a rewritten file."""
    part = module.split(".")[1] if "." in module else ""
    if part in _PARTS and part != "lib":
        own = getattr(numus.numpy, part)
        if name in getattr(own, "__all__", ()):
            return getattr(own, name)
    elif hasattr(numus.numpy, name):
        return getattr(numus.numpy, name)
    found = __import__(module, fromlist=[name])
    return getattr(found, name)


class _Rewrite(ast.NodeTransformer):
    """`import numpy` as an import of the face, and names of NumPy's modules as the face's."""

    def visit_Import(self, node: ast.Import) -> Any:
        kept, made = [], []
        for alias in node.names:
            root = alias.name.partition(".")[0]
            private = "_tests" in alias.name or alias.name.startswith("numpy.lib._")
            if root != "numpy" or private:
                kept.append(alias)
                continue
            target = alias.asname or "numpy"
            made.append(ast.parse(f"from tools.numpy_tests import face as {target}").body[0])
        return ([ast.Import(names=kept)] if kept else []) + made

    def visit_ImportFrom(self, node: ast.ImportFrom) -> Any:
        module = node.module or ""
        if module.partition(".")[0] != "numpy" or "_tests" in module or ".tests." in module:
            return node
        lines = ["from tools.numpy_tests import named"]
        lines += [f"{a.asname or a.name} = named({module!r}, {a.name!r})" for a in node.names]
        return ast.parse("\n".join(lines)).body


def rewritten(path: Path) -> str:
    """The text of a test file whose NumPy is the face."""
    tree = _Rewrite().visit(ast.parse(path.read_text()))
    tree.body = _guarded(tree.body)
    return ast.unparse(ast.fix_missing_locations(tree))


_ATTEMPT = """
try:
    pass
except Exception:
    globals()["np"] = __import__("numpy")
    try:
        pass
    except Exception:
        pass
    finally:
        from tools.numpy_tests import face
        globals()["np"] = face
"""


def _guarded(body: list[Any]) -> list[Any]:
    """Data and parameters of tests that numus has no dtype for are NumPy's: those tests are left
    out or fail, and the others of the file run."""
    made: list[Any] = []
    for node in body:
        if isinstance(node, ast.ClassDef):
            node.body = _guarded(node.body)
        simple = isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not node.decorator_list
        if simple or isinstance(node, (ast.Import, ast.ImportFrom)) or _is_text(node):
            made.append(node)
            continue
        attempt: Any = ast.parse(_ATTEMPT).body[0]
        attempt.body = [node]
        attempt.handlers[0].body[1].body = [node]
        made.append(attempt)
    return made


def _is_text(node: Any) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def reason(item: Any) -> str | None:
    """Why a test is left out; None if it is not."""
    if item.get_closest_marker("slow"):
        return "slow"
    for pattern, why in IDENTIFIERS.items():
        if re.search(pattern, item.nodeid):
            return why
    source = _source(item.function)
    for pattern, why in SOURCES.items():
        if re.search(pattern, source):
            return why
    return None


@functools.cache  # one function has many parameters
def _source(function: Any) -> str:
    import inspect

    try:
        lines = inspect.getsource(function).splitlines()
    except (OSError, TypeError):
        return ""
    starts = (i for i, line in enumerate(lines) if line.lstrip().startswith("def "))
    # the parameters of a test are in its name; what a comment says is not what it does
    return "\n".join(line.partition("  #")[0] for line in lines[next(starts, 0) :])


class Recorder:
    """A pytest plugin: leaves tests out, and records the outcome of each other one."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.outcomes: dict[str, str] = {}
        self.left_out: Counter[str] = Counter()
        self.messages: dict[str, str] = {}

    def pytest_collection_modifyitems(self, config: Any, items: list[Any]) -> None:
        kept, dropped = [], []
        for item in items:
            why = reason(item)
            if why is None:
                kept.append(item)
            else:
                dropped.append(item)
                self.left_out[why] += 1
        config.hook.pytest_deselected(items=dropped)
        items[:] = kept

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.outcomes[f"collection of {report.nodeid}"] = "failed"
            self.messages[f"collection of {report.nodeid}"] = str(report.longrepr)[-300:]

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when != "call" and report.outcome == "passed":
            return
        name = report.nodeid.partition("::")[2]
        if self.outcomes.get(name) == "failed":
            return
        crash = getattr(report.longrepr, "reprcrash", None)
        if report.outcome == "failed" and crash and re.search(MISSING_DTYPE, crash.message):
            self.outcomes[name] = "left out"
            self.left_out["a dtype that numus lacks, met while the test ran"] += 1
            return
        xfailed = hasattr(report, "wasxfail")
        self.outcomes[name] = "xfailed" if xfailed else report.outcome
        if report.outcome == "failed":
            where = f" @{crash.path.rpartition('/')[2]}:{crash.lineno}" if crash else ""
            self.messages[name] = (crash.message if crash else str(report.longrepr))[:300] + where

    def pytest_sessionfinish(self) -> None:
        found = {"outcomes": self.outcomes, "left_out": self.left_out, "messages": self.messages}
        Path(self.path).write_text(json.dumps(found))


def run(file: str, select: str, verbose: bool) -> dict[str, Any]:
    """The outcomes of one file, in a process of its own."""
    source = Path(numpy.__file__).parent / f"{file}.py"
    with tempfile.TemporaryDirectory() as folder:
        test = Path(folder) / f"{file.replace('/tests/', '_').replace('/', '_')}_check_test.py"
        test.write_text(rewritten(source))
        (Path(folder) / "pytest.ini").write_text("[pytest]\n")
        output = Path(folder) / "outcomes.json"
        code = "import sys; from tools.numpy_tests import child; child(*sys.argv[1:])"
        command = [sys.executable, "-c", code, str(test), str(output), select]
        env = os.environ | {"PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, env=env, cwd=folder, capture_output=not verbose, text=True)
        if not output.exists():
            raise RuntimeError(f"{file}: {done.stdout or ''}\n{done.stderr or ''}"[-3000:])
        found: dict[str, Any] = json.loads(output.read_text())
        return found


def child(test: str, output: str, select: str) -> None:
    """Run pytest on one rewritten file, in this process."""
    import pytest

    options = ["-q", "--tb=short", "-p", "no:cacheprovider", f"--timeout={_SECONDS_PER_TEST}"]
    options += ["-W", "ignore", "--disable-warnings", "--continue-on-collection-errors"]
    options += ["-p", "no:hypothesispytest"]  # it parses all of numus for constants
    options += ["-k", select] if select else []
    pytest.main([test, *options], plugins=[Recorder(output)])


def row(file: str, found: dict[str, Any]) -> dict[str, Any]:
    """The counts of a file."""
    outcomes = Counter(found["outcomes"].values())
    left_out = sum(found["left_out"].values())
    return {
        "file": file,
        "passed": outcomes["passed"],
        "failed": outcomes["failed"],
        "out": left_out,
    }


def table(rows: list[dict[str, Any]]) -> str:
    """The rows of the page."""
    lines = ["| file | passed | failed | share | left out |", "|---|---:|---:|---:|---:|"]
    total = {key: sum(r[key] for r in rows) for key in ("passed", "failed", "out")}
    for r in [*rows, {"file": "**all**", **total}]:
        share = r["passed"] / max(r["passed"] + r["failed"], 1)
        name = r["file"].replace("/tests/", "/")
        lines.append(f"| {name} | {r['passed']} | {r['failed']} | {share:.1%} | {r['out']} |")
    return "\n".join(lines)


def reasons(found: list[dict[str, Any]]) -> str:
    """How many tests are left out for each reason."""
    counts: Counter[str] = Counter()
    for f in found:
        counts.update(f["left_out"])
    lines = ["| left out because | tests |", "|---|---:|"]
    return "\n".join(lines + [f"| {why} | {n} |" for why, n in counts.most_common()])


def known_rows() -> dict[str, dict[str, Any]]:
    """The rows that the page has, by file."""
    pattern = r"^\| (\w+)/(test_\w+) \| (\d+) \| (\d+) \| [\d.]+% \| (\d+) \|$"
    found = re.findall(pattern, PAGE.read_text(), re.MULTILINE)
    return {
        f"{folder}/tests/{name}": {"file": f"{folder}/tests/{name}", "passed": int(passed),
                                   "failed": int(failed), "out": int(out)}
        for folder, name, passed, failed, out in found
    }  # fmt: skip


def write(text: str) -> None:
    """Put the tables between the marks of the page."""
    page = PAGE.read_text()
    before, _, rest = page.partition(_MARKS[0])
    _, _, after = rest.partition(_MARKS[1])
    PAGE.write_text(f"{before}{_MARKS[0]}\n{text}\n{_MARKS[1]}{after}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", help="parts of the files' names; all without")
    parser.add_argument("-k", default="", help="pytest's expression")
    parser.add_argument("--write", action="store_true", help="write docs/conformance.md")
    parser.add_argument("--failures", action="store_true", help="print what failed, and how")
    parser.add_argument(
        "--reasons", action="store_true", help="print how many are left out, and why"
    )
    parser.add_argument("--verbose", action="store_true", help="pytest's own output")
    options = parser.parse_args()
    chosen = [f for f in FILES if not options.files or any(p in f for p in options.files)]
    rows, found = [], []
    for file in chosen:
        found.append(run(file, options.k, options.verbose))
        rows.append(row(file, found[-1]))
        print(table(rows[-1:]).splitlines()[2], flush=True)
        if options.failures:
            for name, message in found[-1]["messages"].items():
                print(f"  {name}: {message}".replace("\n", " ")[:260])
    print(table(rows))
    if options.reasons:
        print(reasons(found))
    if options.write:
        today = f"{datetime.datetime.now(datetime.UTC):%d %B %Y}"
        device = os.environ.get("NUMUS_DEVICE", "cpu")
        versions = f"NumPy {numpy.__version__}, Python {sys.version.split()[0]}"
        merged = known_rows() | {r["file"]: r for r in rows}
        every = [merged[f] for f in FILES if f in merged]
        write("\n".join(["", f"{today}; {versions}; device {device}.", "", table(every), ""]))


if __name__ == "__main__":
    main()
