#!/usr/bin/env python3
"""Prints the licences and notices of everything that is linked into the program.

    scripts/third-party.py TARGET [CARGO_ARGUMENT]...

These are the crates that the program depends on for TARGET with the given features, the standard library of Rust and, if
it is linked statically, musl. It fails if a crate has no file with its licence.
"""

import html.parser
import json
import pathlib
import re
import subprocess
import sys

LICENCE = re.compile(r"(licen[cs]e|copying|copyright|notice|unlicense|patents)([-._].*)?", re.IGNORECASE)
CODE = {".rs", ".py", ".sh", ".toml"}


def output_of(*command):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def linked_crates(target, arguments):
    """Returns the packages of others that the program is linked with. Crates of tests and build scripts are not."""
    known = ("--locked", "--format-version", "1", "--filter-platform", target)
    metadata = json.loads(output_of("cargo", "metadata", *known, *arguments))
    packages = {package["id"]: package for package in metadata["packages"]}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    found, to_visit = set(), [metadata["resolve"]["root"]]
    while to_visit:
        crate = to_visit.pop()
        if crate in found:
            continue
        found.add(crate)
        for dependency in nodes[crate]["deps"]:
            if any(kind["kind"] is None for kind in dependency["dep_kinds"]):
                to_visit.append(dependency["pkg"])
    others = [packages[crate] for crate in found if packages[crate]["source"]]
    return sorted(others, key=lambda package: (package["name"], package["version"]))


def texts_of(package):
    """Returns the licences and notices that lie beside a crate's manifest, and in its directory `LICENSES`."""
    home = pathlib.Path(package["manifest_path"]).parent
    files = [file for file in home.iterdir() if LICENCE.fullmatch(file.name)]
    files = [inner for file in files for inner in (file.rglob("*") if file.is_dir() else [file])]
    files += [home / package["license_file"]] if package["license_file"] else []
    files = {file.resolve() for file in files if file.is_file() and file.suffix not in CODE}
    if not files:
        sys.exit(f"third-party.py: {package['name']} {package['version']} has no file with its licence")
    return [file.read_text(errors="replace").strip() for file in sorted(files)]


class Text(html.parser.HTMLParser):
    """The text of a page."""

    def __init__(self):
        super().__init__()
        self.parts, self.is_shown = [], True

    def handle_starttag(self, tag, attrs):
        self.is_shown = self.is_shown and tag not in ("style", "script", "title")
        if tag in ("p", "li", "summary", "details", "h1", "h2", "h3", "h4", "pre"):
            self.parts.append("\n")

    def handle_endtag(self, tag):
        self.is_shown = True

    def handle_data(self, data):
        if self.is_shown:
            self.parts.append(data)


def standard_library():
    """Returns the notices of the standard library, which the compiler brings along."""
    documents = pathlib.Path(output_of("rustc", "--print", "sysroot").strip()) / "share/doc/rust"
    page = documents / "COPYRIGHT-library.html"
    if not page.is_file():
        print(f"third-party.py: the compiler has no {page.name}, so the notices do not list its parts", file=sys.stderr)
        return "The standard library of Rust, Copyright (c) The Rust Project Contributors, is licensed as MIT OR Apache-2.0."
    text = Text()
    text.feed(page.read_text())
    return re.sub(r"\n\s*\n+", "\n\n", "".join(text.parts)).strip()


def musl():
    """Returns the notice of musl."""
    notice = pathlib.Path("/usr/share/doc/musl/copyright")
    if not notice.is_file():
        sys.exit(f"third-party.py: {notice} is not there, although the program is linked with musl")
    return notice.read_text().strip()


def main():
    target, arguments = sys.argv[1], sys.argv[2:]
    crates = linked_crates(target, arguments)
    # Crates share texts: each text is there once, below the names of its crates.
    crates_of = {}
    for package in crates:
        for text in texts_of(package):
            _, names = crates_of.setdefault(" ".join(text.split()), (text, []))
            names.append(f"{package['name']} {package['version']}")
    rule = "=" * 80
    print("The program cauchyfs contains code of others. Their licences and notices follow.\n")
    for package in crates:
        print(f"{package['name']} {package['version']}: {package['license']}")
    for text, names in sorted(crates_of.values(), key=lambda entry: entry[1]):
        print(f"\n{rule}\n{', '.join(dict.fromkeys(names))}\n{rule}\n\n{text}")
    print(f"\n{rule}\nthe standard library of Rust\n{rule}\n\n{standard_library()}")
    if target.endswith("-musl"):
        print(f"\n{rule}\nmusl\n{rule}\n\n{musl()}")


main()
