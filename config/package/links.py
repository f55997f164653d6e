#!/usr/bin/env python3
"""Writes Markdown pages for use outside the repository.

    links.py PAGE               prints a page
    links.py into OUT PATH…     copies pages, and folders with pages and other files, to OUT, each with its path in the repository

Links to anything else lead to the repository, at the tag of this version if this commit has it. Without an address in Cargo.toml,
only their text stays.
"""

import functools
import pathlib
import posixpath
import re
import shutil
import subprocess
import sys

from release import ROOT, current, git

LINK = re.compile(r"(?P<image>!?)\[(?P<text>[^\[\]]*)\]\((?P<target>[^()\s]+)\)")


@functools.cache
def address():
    """The address of the files of this commit, or none."""
    values = current()
    try:
        ref = f"v{values['version']}"
        if ref not in git("tag", "--points-at", "HEAD").splitlines():
            ref = "main"
    except (OSError, subprocess.CalledProcessError):
        ref = "main"
    return f"{values['repository']}/blob/{ref}" if values["repository"] else ""


def outside(page, kept):
    """Returns the text of a page with links kept that lead into these paths. All paths are relative to the repository."""

    def replace(match):
        path, _, anchor = match["target"].partition("#")
        if not path or ":" in path:
            return match[0]
        target = posixpath.normpath(posixpath.join(posixpath.dirname(page), path))
        if any((target + "/").startswith(path + "/") for path in kept):
            return match[0]
        if not address():
            return match["text"]
        # A page about an image is no image.
        base = address().replace("/blob/", "/raw/") if match["image"] else address()
        return f"{match['image']}[{match['text']}]({base}/{target}{'#' + anchor if anchor else ''})"

    # Code stays as it is. A link may stand around code, so its brackets are matched first.
    return re.sub(rf"^```.*?^```|{LINK.pattern}", lambda match: replace(match) if match["target"] else match[0], (ROOT / page).read_text(), flags=re.M | re.S)


def into(out, paths):
    """Copies files and folders, and rewrites the links of pages."""
    for path in paths:
        files = [ROOT / path] if (ROOT / path).is_file() else sorted((ROOT / path).rglob("*"))
        for file in filter(pathlib.Path.is_file, files):
            name = file.relative_to(ROOT)
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            if file.suffix == ".md":
                (out / name).write_text(outside(str(name), paths))
            else:
                shutil.copyfile(file, out / name)


if __name__ == "__main__":
    match sys.argv[1:]:
        case [page]:
            sys.stdout.write(outside(str(pathlib.Path(page).resolve().relative_to(ROOT)), ()))
        case ["into", out, first, *more]:
            into(pathlib.Path(out), (first, *more))
        case _:
            sys.exit(__doc__)
