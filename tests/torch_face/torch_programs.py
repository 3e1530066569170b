"""Runs a program written for PyTorch with its import lines changed, and nothing else."""

import re
from pathlib import Path

FOLDERS = (Path(__file__).parent / "programs", Path(__file__).parents[1] / "programs" / "torch")
_LINE = re.compile(r"^(\s*)(import|from) torch\b(.*)$", re.MULTILINE)


def over_numus(text):
    """The text of a program with `numus.torch` for `torch` in its import lines."""

    def line(match):
        space, word, rest = match.groups()
        if word == "import" and " as " not in rest:
            if not rest:
                return f"{space}import numus.torch as torch"
            return f"{space}import numus.torch{rest}"  # its parts are found by attribute
        return f"{space}{word} numus.torch{rest}"

    return _LINE.sub(line, text)


def run(name):
    """The names of a program after it ran."""
    names = {"__name__": name}
    path = next(p for folder in FOLDERS if (p := folder / f"{name}.py").exists())
    text = over_numus(path.read_text())
    exec(compile(text, f"{name}.py", "exec"), names)
    return names


if __name__ == "__main__":
    import sys
    import time

    for given in sys.argv[1:]:
        start = time.perf_counter()
        run(given)
        print(given, f"{time.perf_counter() - start:.1f} s")
