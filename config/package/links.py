#!/usr/bin/env python3
"""Prints a Markdown page for a place without the rest of the repository: `links.py PAGE [FOLDER]`.

Links that leave FOLDER (by default, all relative links) lead to the repository, at the tag of this version if this commit has it.
Without an address in Cargo.toml, only their text stays.
"""

import functools
import pathlib
import posixpath
import re
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


def outside(page, folder):
    """Returns the text of a page. Both paths are relative to the repository."""

    def replace(match):
        path, _, anchor = match["target"].partition("#")
        if not path or ":" in path:
            return match[0]
        target = posixpath.normpath(posixpath.join(posixpath.dirname(page), path))
        if folder and (target + "/").startswith(folder + "/"):
            return match[0]
        if not address():
            return match["text"]
        # A page about an image is no image.
        base = address().replace("/blob/", "/raw/") if match["image"] else address()
        return f"{match['image']}[{match['text']}]({base}/{target}{'#' + anchor if anchor else ''})"

    # Code stays as it is. A link may stand around code, so its brackets are matched first.
    return re.sub(rf"^```.*?^```|{LINK.pattern}", lambda match: replace(match) if match["target"] else match[0], (ROOT / page).read_text(), flags=re.M | re.S)


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    page, *folder = (str(pathlib.Path(name).resolve().relative_to(ROOT)) for name in sys.argv[1:])
    sys.stdout.write(outside(page, folder[0] if folder else ""))
