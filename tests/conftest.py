"""Lets tests in any folder import the helpers that lie beside this file."""

import os

from hypothesis import settings

# What a test run says depends on the code alone: every run draws the same examples. To go looking
# for new ones: `pytest --hypothesis-profile=search`.
settings.register_profile("steady", derandomize=True, deadline=None)
settings.register_profile("search", max_examples=1000, deadline=None)
settings.load_profile("steady")


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
