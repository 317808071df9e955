#!/usr/bin/env python3
"""Prints the licences of everything that programs contain: Rust crates and the packages of the app's page.

    scripts/third_party.py TARGET PACKAGE...

Texts come from the sources that cargo and npm have unpacked; equal texts are printed once. The order is fixed.
"""

import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
NAMES = ("license", "licence", "copying", "notice", "unlicense", "ofl")


def crates(target, programs):
    """Crates that are linked into the packages `programs`, as (name, version, licence, folder)."""
    command = ["cargo", "metadata", "--format-version=1", "--locked", f"--filter-platform={target}"]
    found = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    metadata = json.loads(found.stdout)
    packages = {package["id"]: package for package in metadata["packages"]}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    waiting = [id for id, package in packages.items() if package["name"] in programs]
    seen = set()
    while waiting:
        id = waiting.pop()
        if id in seen:
            continue
        seen.add(id)
        for dependency in nodes[id]["deps"]:
            if any(kind["kind"] is None for kind in dependency["dep_kinds"]):
                waiting.append(dependency["pkg"])
    for id in seen:
        package = packages[id]
        if package["source"] is not None:
            folder = pathlib.Path(package["manifest_path"]).parent
            yield package["name"], package["version"], package["license"] or "see the text", folder


def page_packages():
    """Packages of the app's page, in the same form."""
    modules = ROOT / "ui" / "node_modules"
    wanted = set(json.loads((ROOT / "ui" / "package.json").read_text())["dependencies"]) | {"svelte"}
    for name in wanted:
        package = json.loads((modules / name / "package.json").read_text())
        yield name, package["version"], package.get("license", "see the text"), modules / name


def texts(folder):
    """The licence texts in a package's folder."""
    files = [path for path in folder.iterdir() if path.name.lower().startswith(NAMES) and path.is_file()]
    for path in sorted(files):
        text = path.read_text(encoding="utf-8", errors="replace").replace("\r\n", "\n")
        yield "\n".join(line.rstrip() for line in text.strip().split("\n"))


def main():
    target, *programs = sys.argv[1:]
    packages = sorted(set(crates(target, programs)))
    if "kept-app" in programs:
        packages += sorted(set(page_packages()))
    of_text = {}
    print("Kept contains the following packages, under these licences.\n")
    for name, version, licence, folder in packages:
        print(f"{name} {version}: {licence}")
        for text in texts(folder):
            of_text.setdefault(text, []).append(f"{name} {version}")
    for text, names in of_text.items():
        print("\n" + "=" * 100)
        print(", ".join(names))
        print("=" * 100 + "\n")
        print(text)


if __name__ == "__main__":
    main()
