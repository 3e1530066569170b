"""Lets tests in any folder import the helpers that lie beside this file."""

import os


def pytest_addoption(parser):
    parser.addoption(
        "--update-snapshots",
        action="store_true",
        help="write the kernels of tests/snapshots anew instead of comparing them",
    )


def pytest_configure(config):
    if "groups" in os.environ.get("NUMUS_TEST_DEVICES", "").split(","):
        import group_machine

        group_machine.install()
