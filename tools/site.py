"""Hooks of the documentation site (mkdocs.yml): generated pages.

The API reference consists of the docstrings of public names, whose examples the tests run;
CONTRIBUTING.md and CHANGELOG.md are included as pages.
"""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
PAGES = {"contributing.md": "CONTRIBUTING.md", "changelog.md": "CHANGELOG.md"}
# Namespaces of the reference, a page each; the first is divided by module.
NAMESPACES = (
    *("numus", "numus.nn", "numus.nn.functional", "numus.nn.init", "numus.nn.utils"),
    *("numus.optim", "numus.optim.lr_scheduler", "numus.optim.training", "numus.data"),
    *("numus.random", "numus.autograd", "numus.kernels"),
)
_LINK = re.compile(r"\]\((?!https?:|#)([^)]+)\)")
_ENTRY = re.compile(r"^(\s*)(\w[\w, *]*): (?=\S)")


def on_files(files: Files, config: Any) -> Files:
    """Add the generated pages, and the reference to the navigation."""
    for name, source in PAGES.items():
        files.append(File.generated(config, name, content=_moved((ROOT / source).read_text())))
    made = {f"api/{name}.md": _reference(name) for name in NAMESPACES}
    for name, content in made.items():
        files.append(File.generated(config, name, content=content))
    for entry in config["nav"]:
        if "API reference" in entry:
            entry["API reference"] = list(made)
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Redirect links to files outside of docs/ to their pages."""
    for name, source in PAGES.items():
        markdown = markdown.replace(f"](../{source})", f"]({name})")
    return markdown


def _moved(text: str) -> str:
    """Rebase the links of a page at the root to docs/."""

    def link(match: re.Match[str]) -> str:
        to = match[1]
        return f"]({to.removeprefix('docs/')})" if to.startswith("docs/") else f"](../{to})"

    return _LINK.sub(link, text)


def _reference(name: str) -> str:
    module = importlib.import_module(name)
    parts = [f"# {name}\n", _prose(inspect.getdoc(module) or "")]
    found: dict[str, list[str]] = {}
    for public in sorted(getattr(module, "__all__", dir(module))):
        thing = getattr(module, public, None)
        if public.startswith("_") or inspect.ismodule(thing) or not callable(thing):
            continue
        heading = _section(thing) if name == "numus" else ""
        found.setdefault(heading, []).append(_entry(public, thing))
    for heading in sorted(found):
        if heading:
            parts.append(f"## {heading}\n")
        parts += found[heading]
    return "\n".join(parts)


def _section(thing: Any) -> str:
    """The subject of a function, by the module that defines it."""
    last = (getattr(thing, "__module__", None) or "numus").split(".")[-1].strip("_")
    return last.replace("_", " ").capitalize()


def _entry(name: str, thing: Any) -> str:
    try:
        signature = str(inspect.signature(thing))
    except (TypeError, ValueError):
        signature = "(...)"
    signature = re.sub(r"numus\.[\w.]+\.", "", signature).replace("'", "")
    signature = signature.removesuffix(" -> None")
    kind = "class " if inspect.isclass(thing) else ""
    code = f"```python\n{kind}{name}{signature}\n```\n"
    return f"### {name}\n\n{code}\n{_prose(inspect.getdoc(thing) or '')}"


def _prose(doc: str) -> str:
    """A docstring as Markdown: examples become code, arguments a list."""
    out: list[str] = []
    code = listing = False
    for line in doc.splitlines():
        if line.lstrip().startswith(">>> ") and not code:
            out += ["", "```pycon"]
            code = True
        elif code and not line.strip():
            out += ["```", ""]
            code = False
        if code:
            out.append(line.strip() if line.lstrip().startswith((">>>", "...")) else line)
            continue
        if line.strip() in ("Args:", "Arguments:", "Returns:", "Raises:"):
            out += ["", f"**{line.strip()[:-1]}**", ""]
            listing = True
            continue
        entry = _ENTRY.match(line) if listing else None
        if entry and entry[1]:
            out.append(f"- `{entry[2]}`: {line[entry.end() :]}")
        else:
            listing = listing and line.startswith(" ")
            out.append(f"  {line.strip()}" if listing else line)
    if code:
        out.append("```")
    return "\n".join(out) + "\n"
