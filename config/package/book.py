#!/usr/bin/env python3
"""Builds the site of the documentation, in a form for browsers and one for language models.

    book.py OUT [MDBOOK]   writes the book as HTML, each page as Markdown beside it, and llms.txt, to OUT
    book.py check          checks that each page begins with a sentence for llms.txt

`llms.txt` (https://llmstxt.org) has a line for each page of SUMMARY.md: its title there, and the first sentences of the page.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

from links import address, outside
from release import ROOT, first

DOCS = "shared/docs"
# The most characters of the sentences of a page.
MOST = 300


def summary():
    """Yields the parts of SUMMARY.md: a heading, or the title and the path of a page."""
    for line in (ROOT / DOCS / "SUMMARY.md").read_text().splitlines()[1:]:
        if line.startswith("# "):
            yield line[2:], None
        elif match := re.match(r"\s*(?:- )?\[(.*)\]\((.+)\)$", line):
            yield match[1], match[2]


def opening(path):
    """Returns the first sentence of a page, and more of its first paragraph if it is short, as plain text."""
    # Only headings and notes may stand before it.
    lines = [line for line in (ROOT / DOCS / path).read_text().splitlines() if not line.startswith(("#", ">", "<!--"))]
    text = "\n".join(lines).strip().split("\n\n")[0]
    if text.startswith(("```", "|", "- ", "1. ", "!")):
        return ""
    text = re.sub(r"!?\[([^\[\]]*)\]\([^()]*\)", r"\1", " ".join(text.split())).replace("**", "")
    found, *more = re.split(r"(?<=[.!?]) (?=[A-Z`])", text)
    for one in more:
        if len(found) + len(one) >= MOST // 2 or one.endswith(":"):
            break
        found += " " + one
    return found.removesuffix(":").removesuffix(".") + "."


def check():
    for _, path in summary():
        if path and not 20 <= len(opening(path)) <= MOST:
            yield f"{DOCS}/{path}: the page must begin with a sentence of 20 to {MOST} characters, for llms.txt: {opening(path)!r}"


def index():
    book = (ROOT / DOCS / "book.toml").read_text()
    title, description = (first(rf'^{key} = "(.*)"$', book) for key in ("title", "description"))
    lines = [f"# {title}", "", f"> {description}", ""]
    for title, path in summary():
        lines += [f"- [{title}]({path}): {opening(path)}"] if path else ["", f"## {title}", ""]
    return "\n".join(lines) + "\n"


def build(out, mdbook):
    out = pathlib.Path(out).resolve()
    with tempfile.TemporaryDirectory() as folder:
        # A copy, because links to other files of the repository lead nowhere on the site.
        source = pathlib.Path(folder, "docs")
        shutil.copytree(ROOT / DOCS, source)
        for page in sorted(source.rglob("*.md")):
            page.write_text(outside(f"{DOCS}/{page.relative_to(source)}", (DOCS,)))
        environment = dict(os.environ)
        if address():
            environment["MDBOOK_OUTPUT__HTML__GIT_REPOSITORY_URL"] = address().split("/blob/")[0]
        subprocess.run([mdbook, "build", source, "--dest-dir", out], check=True, env=environment)
        for _, path in summary():
            if path:
                (out / path).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(source / path, out / path)
    (out / "book.toml").unlink()
    (out / "llms.txt").write_text(index())


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3) or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    if problems := list(check()):
        sys.exit("\n".join(problems))
    if sys.argv[1] != "check":
        build(sys.argv[1], sys.argv[2] if len(sys.argv) == 3 else "mdbook")
