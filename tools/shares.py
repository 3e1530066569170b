"""A plugin of pytest by which several processes share out tests; `tools.device_tests` starts them.

Every process collects all tests, begins at a place of its own, and takes a few at a time until none
are left. Neighbours become the same kernels more often than not: who compiled them goes on with
them, and who is done helps the others. What becomes of each test is written down as it happens.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

_FEW = 8  # tests that are taken at a time


def pytest_addoption(parser: Any) -> None:
    parser.addoption("--shares", help="a folder that the processes have in common")
    parser.addoption("--share", help="which process this is, of how many: 0/14")
    parser.addoption("--until", type=float, help="a time after which no test is begun")


def pytest_configure(config: Any) -> None:
    config.pluginmanager.register(_Shares(config.option))


class _Shares:
    def __init__(self, given: Any) -> None:
        self._folder = Path(given.shares)
        self._process, self._processes = map(int, given.share.split("/"))
        self._until = given.until
        self._notes = (self._folder / f"notes.{self._process}").open("w")

    def _write(self, *words: Any) -> None:
        self._notes.write(json.dumps(words) + "\n")
        self._notes.flush()  # whatever happens next

    def _taken(self, number: int) -> bool:
        """Take a few tests that nobody has taken: of all processes, one makes the file."""
        try:
            (self._folder / f"taken.{number}").open("x").close()
        except FileExistsError:
            return False
        return True

    def _own(self, items: list[Any]) -> Iterator[Any]:
        count = -(-len(items) // _FEW)
        begin = self._process * count // self._processes
        for number in (*range(begin, count), *range(begin)):
            if time.time() < self._until and self._taken(number):
                for item in items[number * _FEW : (number + 1) * _FEW]:
                    if time.time() < self._until:
                        yield item

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: Any) -> bool | None:
        if session.testsfailed:
            return None  # collecting them went wrong: pytest's own loop says so
        if self._process == 0:
            names = [item.nodeid for item in session.items]
            (self._folder / "names").write_text(json.dumps(names))
        items = self._own(session.items)
        item = next(items, None)
        while item is not None:
            following = next(items, None)
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            item = following
        return True

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._write(nodeid, "begun", 0.0, "")

    def pytest_runtest_logreport(self, report: Any) -> None:
        why = ""
        if report.outcome == "skipped":
            why = str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr)
        elif report.outcome == "failed":
            crash = getattr(report.longrepr, "reprcrash", None)
            why = crash.message if crash else str(report.longrepr)
        outcome = report.outcome
        if outcome == "passed" and report.when != "teardown":
            outcome = "begun"
        self._write(report.nodeid, outcome, report.duration, why)
