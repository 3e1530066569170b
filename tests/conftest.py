"""Lets tests in any folder import the helpers that lie beside this file."""


def pytest_addoption(parser):
    parser.addoption(
        "--update-snapshots",
        action="store_true",
        help="write the kernels of tests/snapshots anew instead of comparing them",
    )
