"""Python programs in processes of their own."""

import os
import subprocess
import sys
import textwrap


def start(code, *args, **environment):
    """A process that runs the code."""
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, args)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, **environment},
    )


def finish(process, seconds=120):
    """What it printed, if it ended well."""
    try:
        output = process.communicate(timeout=seconds)[0]
    except subprocess.TimeoutExpired:
        process.kill()
        raise AssertionError(f"hangs:\n{process.communicate()[0][-4000:]}") from None
    assert process.returncode == 0, f"exit {process.returncode}:\n{output[-4000:]}"
    return output


def run(code, *args, seconds=120, **environment):
    return finish(start(code, *args, **environment), seconds)
