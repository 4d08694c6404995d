"""Check what `make release` has built: names, contents, and that both install where nothing else is.

    python tests/released.py dist

It ends with 1 and says what is wrong. It uploads nothing.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
NEEDED = ("headrace/py.typed", "headrace/operate/page/live.js", "headrace/operate/project/pipeline.py.txt")
UNWANTED = ("tests/", "bench/", "simulator/", "chaos/")


def problems(folder: Path) -> Iterator[str]:
    """Everything that is wrong with what has been built."""
    version = re.search(r'__version__ = "([^"]+)"', (ROOT / "src/headrace/__init__.py").read_text())
    assert version is not None
    built = sorted(path.name for path in folder.iterdir())
    expected = [f"headrace-{version[1]}-py3-none-any.whl", f"headrace-{version[1]}.tar.gz"]
    if built != expected:
        yield f"{folder} has {', '.join(built)} and not {', '.join(expected)}"
        return
    tags = subprocess.run(["git", "tag", "--points-at", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    if (named := tags.stdout.split()) and f"v{version[1]}" not in named:
        yield f"this commit has the tag {', '.join(named)}, and the version is {version[1]}"
    if f"## [{version[1]}]" not in (ROOT / "CHANGELOG.md").read_text() and named:
        yield f"CHANGELOG.md has no section for {version[1]}"
    wheel, archive = (folder / name for name in expected)
    with zipfile.ZipFile(wheel) as opened:
        names = opened.namelist()
    yield from (f"{wheel.name} lacks {name}" for name in NEEDED if name not in names)
    yield from (f"{wheel.name} has {name}" for name in names if name.startswith(UNWANTED))
    with tarfile.open(archive) as opened_archive:
        inside = opened_archive.getnames()
    yield from (f"{archive.name} lacks {name}" for name in NEEDED if not any(one.endswith(name) for one in inside))
    yield from used(wheel, version[1], try_it=True)
    yield from used(archive, version[1], try_it=False)


def used(package: Path, version: str, *, try_it: bool) -> Iterator[str]:
    """Install it in an environment of its own, and do there what a newcomer does first."""
    with tempfile.TemporaryDirectory(prefix="released-") as place:
        venv.create(Path(place) / "venv", with_pip=True)
        python = str(Path(place) / "venv" / "bin" / "python")
        quietly = ["--quiet", "--disable-pip-version-check"]
        pytest = ["pytest"] if try_it else []
        subprocess.run([python, "-m", "pip", "install", *quietly, str(package.absolute()), *pytest], check=True)
        commands = [["-m", "headrace", "--version"]]
        if try_it:
            commands += [
                ["-m", "headrace", "new", "views"],
                ["-m", "pytest", "-q", "views"],
                ["-m", "headrace", "doctor"],
            ]
        for command in commands:
            done = subprocess.run([python, *command], cwd=place, capture_output=True, text=True, check=False)
            print(f"{package.name}: {' '.join(command[1:])}: {done.stdout.strip().splitlines()[-1:]}")
            if done.returncode:
                yield f"{package.name}: {' '.join(command)} ended with {done.returncode}: {done.stdout}{done.stderr}"
            elif command[-1] == "--version" and version not in done.stdout:
                yield f"{package.name}: its version is {done.stdout.strip()}"


def main() -> int:
    found = list(problems(Path(sys.argv[1])))
    for one in found:
        print(one, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
