#!/usr/bin/env python3
"""Releases a version, and keeps the version and the address of the repository the same everywhere.

    release.py VERSION [--dry-run]   checks, sets the version, dates the changelog, commits and tags; pushes nothing
    release.py set                   writes both from Cargo.toml to all PLACES, after a change of `repository` there
    release.py check                 compares all PLACES with Cargo.toml
    release.py show FACT             prints `version`, `repository`, `go` (the module) or `group` (of Maven)

Cargo.toml is the source of both. PLACES lists everything that repeats them, and drives the setting and the check.
"""

import datetime
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
# Pre-releases that crates.io, npm, PyPI, Debian and RPM order alike.
SEMVER = re.compile(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(?:-(alpha|beta|rc)\.([1-9]\d*))?")
V = r"(\d+\.\d+\.\d+(?:[-~][a-z]+\.\d+)?)"
GO = r"lisarelay|[\w./-]+/shared/clients/go"

# Files, a pattern whose group is the fact, and the fact. Each pattern must match in these files, at least once.
PLACES = [
    ("Cargo.toml", rf'^version = "{V}"$', "{version}"),
    ("Cargo.toml", rf'^lisa-[a-z-]+ = {{ version = "={V}"', "{version}"),
    ("Cargo.lock tests/fuzz/Cargo.lock", rf'^name = "lisa-(?!fuzz")[a-z-]+"\nversion = "{V}"$', "{version}"),
    ("config/helm/lisa/Chart.yaml", rf"^(?:version|appVersion): {V}$", "{version}"),
    ("config/kubernetes/base/kustomization.yaml", rf"^    newTag: {V}$", "{version}"),
    ("config/compose.yaml", rf"\blisa:{V}}}$", "{version}"),
    ("shared/clients/python/pyproject.toml", rf'^version = "{V}"$', "{version}"),
    ("shared/clients/typescript/package.json", rf'^  "version": "{V}",$', "{version}"),
    ("shared/clients/java/pom.xml", rf"^  <artifactId>lisa-relay</artifactId>\n  <version>{V}</version>$", "{version}"),
    ("shared/docs/reference/openapi.json", rf'^    "version": "{V}"$', "{version}"),
    # Names of packages and images.
    ("README.md shared/docs", rf"\blisa[_-]{V}-1[._]", "{package}"),
    ("README.md shared/docs", rf"\blisa-{V}-(?:x86_64|aarch64)-", "{version}"),
    ("README.md shared/docs", rf"\blisa:{V}", "{version}"),
    ("shared/clients/java/README.md", rf"\blisa-relay:{V}", "{version}"),
    # The module of Go and the group of Maven follow from the address.
    ("shared/clients/go/go.mod", r"^module (\S+)$", "{go}"),
    ("shared/clients/go tests/benches/peers/go", rf'^\t((?:lisarelay )?"(?:{GO})")$', "{go_import}"),
    ("shared/clients/go/README.md", rf"^go (?:get|mod edit) (?:-require |-replace )?({GO})[=@]", "{go}"),
    ("tests/benches/peers/go/go.mod", rf"^(?:require|replace) ({GO}) ", "{go}"),
    ("shared/clients/README.md shared/docs/guides/clients.md", rf"\(\S*go/README\.md\).*`({GO})`", "{go}"),
    ("shared/clients/java/pom.xml", r"^  <groupId>(\S+)</groupId>$", "{group}"),
    ("shared/clients shared/docs", r"`([a-z.]+):lisa-relay\b", "{group}"),
]
# A paragraph that only the tree before the first release has.
UNRELEASED = re.compile(r"^> Version \S+ is not released yet[^\n]*\n(?:>[^\n]*\n)*\n", re.M)
SECTION = re.compile(r"^## .*\bunreleased\b.*$", re.M | re.I)


def git(*arguments):
    return subprocess.run(["git", "-C", ROOT, *arguments], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def read(name):
    return (ROOT / name).read_text()


def first(pattern, text):
    found = re.search(pattern, text, re.M)
    return found[1] if found else ""


def facts(version, repository):
    if repository and not re.fullmatch(r"https://[a-z.]+/[\w-]+/[\w.-]+", repository):
        sys.exit(f"repository {repository!r}: expected an address such as https://github.com/owner/lisa")
    host, owner, _ = repository.removeprefix("https://").split("/") if repository else ("", "", "")
    go = repository.removeprefix("https://") + "/shared/clients/go" if repository else "lisarelay"
    return {
        "version": version,
        "repository": repository,
        # Debian and RPM sort a pre-release before its release by this sign.
        "package": version.replace("-", "~"),
        "go": go,
        "go_import": f'lisarelay "{go}"' if repository else f'"{go}"',
        # A group of Maven Central belongs to the owner of an account or of a domain.
        "group": ".".join(("io", host.removesuffix(".com").removesuffix(".org"), owner.lower())) if repository else "lisa",
    }


def current():
    text = read("Cargo.toml")
    return facts(first(rf'^version = "{V}"$', text), first(r'^repository = "(.*)"$', text))


def places(values):
    """Yields each file, the line, what it says and what it should say; and the pattern that matches nowhere."""
    for files, pattern, template in PLACES:
        found = False
        for name in git("ls-files", "--", *files.split()).splitlines():
            if not name.endswith((".md", ".toml", ".lock", ".yaml", ".json", ".xml", ".go", ".mod")):
                continue
            text = read(name)
            for match in re.finditer(pattern, text, re.M):
                found = True
                line = text.count("\n", 0, match.start(1)) + 1
                yield name, line, match, template.format(**values)
        if not found:
            yield files, 0, pattern, None


def check(values):
    return [
        f"{name}:{line}: {match[1]} should be {expected}" if expected else f"{name}: nothing matches {match}"
        for name, line, match, expected in places(values)
        if expected is None or match[1] != expected
    ]


def changes(values):
    """Returns the new texts of the files that differ from these values."""
    spans = {}
    for name, _, match, expected in places(values):
        if expected and match[1] != expected:
            spans.setdefault(name, set()).add((*match.span(1), expected))
    texts = {}
    for name, edits in spans.items():
        texts[name] = read(name)
        for start, end, expected in sorted(edits, reverse=True):
            texts[name] = texts[name][:start] + expected + texts[name][end:]
    return texts


def order(version):
    """A key that sorts versions: a pre-release is before its release."""
    *numbers, kind, count = SEMVER.fullmatch(version).groups()
    return [int(number) for number in numbers], (1,) if kind is None else (0, kind, int(count))


def problems(version, before):
    if not SEMVER.fullmatch(version):
        yield f"version {version!r}: expected X.Y.Z, or X.Y.Z-rc.N (also alpha, beta)"
    else:
        tags = [tag[1:] for tag in git("tag", "--list", "v*").splitlines() if SEMVER.fullmatch(tag[1:])]
        last = max(tags, key=order, default=None)
        if last and order(version) <= order(last):
            yield f"version {version}: must be greater than {last}, the last tag"
        elif order(version) < order(before["version"]):
            yield f"version {version}: must not be lower than {before['version']}, the version in Cargo.toml"
    if git("status", "--porcelain"):
        yield "the work tree has changes: commit or remove them"
    if (branch := git("rev-parse", "--abbrev-ref", "HEAD")) != "main":
        yield f"the branch is {branch}: release from main"
    if not before["repository"]:
        yield "Cargo.toml: `repository` is empty: set the address, run `release.py set`, and commit"
    yield from check(before)
    sections = re.findall(r"^## .*$", read("CHANGELOG.md"), re.M)
    if len(SECTION.findall(read("CHANGELOG.md"))) != 1 or not SECTION.match(sections[0]):
        yield "CHANGELOG.md: expected one section `## Unreleased`, as the first section"
    elif not re.search(r"^- ", SECTION.split(read("CHANGELOG.md"))[1].split("\n## ")[0], re.M):
        yield "CHANGELOG.md: the unreleased section has no entry"


def release(version, dry_run):
    before = current()
    found = list(problems(version, before))
    if found:
        sys.exit("\n".join(["not released:", *(f"  {one}" for one in found)]))
    values = facts(version, before["repository"])
    texts = changes(values)
    today = datetime.datetime.now(datetime.timezone.utc).date()
    texts["CHANGELOG.md"] = SECTION.sub(f"## {version} ({today})", read("CHANGELOG.md"))
    for name in git("ls-files", "--", "README.md", "shared/docs/*.md", "shared/clients/*.md").splitlines():
        text = texts.get(name, read(name))
        if UNRELEASED.search(text):
            texts[name] = UNRELEASED.sub("", text)
    # pkg.go.dev and Go find a module in a folder by a tag with the path of the folder.
    tags = [f"v{version}", f"shared/clients/go/v{version}"]
    print(f"release: {version}\n" + "\n".join(f"  {name}" for name in sorted(texts)) + f"\ntags: {' '.join(tags)}")
    if dry_run:
        return
    for name, text in texts.items():
        (ROOT / name).write_text(text)
    if found := check(values):
        sys.exit("\n".join(["set, but not committed:", *found]))
    git("commit", "--quiet", "--message", f"release: {version}", "--", *texts)
    for tag in tags:
        git("tag", "--annotate", "--message", f"Lisa {version}", tag)
    print(f"""committed and tagged; nothing is pushed. Next:
  make dist dist-check publish-check
  git push origin main {' '.join(tags)}
  publish target/packages with the tag, and run the commands that publish-check printed""")


def main(arguments):
    if arguments == ["check"]:
        if found := check(current()):
            sys.exit("\n".join([*found, "Cargo.toml has the version and the address: `python3 config/package/release.py set`"]))
    elif arguments == ["set"]:
        for name, text in changes(current()).items():
            (ROOT / name).write_text(text)
            print(name)
    elif len(arguments) == 2 and arguments[0] == "show" and arguments[1] in current():
        print(current()[arguments[1]])
    elif arguments and not arguments[0].startswith("-") and arguments[1:] in ([], ["--dry-run"]):
        release(arguments[0], len(arguments) == 2)
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
