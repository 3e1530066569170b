"""pytest plugin that distributes tests over processes; `tools.device_tests` starts them.

Every process collects all tests, starts at its own offset, and claims chunks until none are left.
Adjacent tests often share kernels, so a process continues with those it has compiled; idle
processes steal from others. Outcomes are logged as they happen.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

_CHUNK_TESTS = 8  # claimed at a time


def pytest_addoption(parser: Any) -> None:
    parser.addoption("--shares", help="folder shared by the processes")
    parser.addoption("--share", help="index and number of processes: 0/14")
    parser.addoption("--until", type=float, help="time after which no test is started")


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
        self._notes.flush()  # in case the process dies

    def _claim(self, number: int) -> bool:
        """Claim a chunk of tests: one process succeeds in creating the file."""
        try:
            (self._folder / f"taken.{number}").open("x").close()
        except FileExistsError:
            return False
        return True

    def _own(self, items: list[Any]) -> Iterator[Any]:
        count = -(-len(items) // _CHUNK_TESTS)
        begin = self._process * count // self._processes
        for number in (*range(begin, count), *range(begin)):
            if time.time() < self._until and self._claim(number):
                for item in items[number * _CHUNK_TESTS : (number + 1) * _CHUNK_TESTS]:
                    if time.time() < self._until:
                        yield item

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: Any) -> bool | None:
        if session.testsfailed:
            return None  # collection failed: pytest's own loop reports it
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
