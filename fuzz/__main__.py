"""``python -m fuzz [--inputs N | --minutes M] [--seed S] [--only frame,arrow] [--replay FILE]``."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path

from fuzz.child import Finding, tried
from fuzz.decoders import decodings, replay
from fuzz.parent import in_child
from fuzz.turns import INPUTS_A_TURN, Turn, by_inputs, by_time

FOLDER = Path("fuzz-findings")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; returns 1 if anything was found."""
    names = list(decodings())
    parser = argparse.ArgumentParser(prog="python -m fuzz", description="Feed damaged bytes to whatever decodes bytes.")
    parser.add_argument("--inputs", type=int, default=INPUTS_A_TURN, help="how many inputs each decoder gets")
    parser.add_argument("--minutes", type=float, help="go on for so long instead, with as much time for each decoder")
    parser.add_argument("--seed", type=int, default=1, help="the first seed (default: 1)")
    parser.add_argument("--only", default="", help=f"decoders, of {', '.join(names)}")
    parser.add_argument("--replay", type=Path, help=f"decode a saved finding again (they are in {FOLDER})")
    options = parser.parse_args(arguments)
    if options.replay is not None:
        return _replay(options.replay)
    chosen = [name for name in options.only.split(",") if name] or names
    if unknown := set(chosen) - set(names):
        parser.error(f"no such decoders: {', '.join(sorted(unknown))} (there are {', '.join(names)})")
    if options.minutes is None:
        return _fuzz(by_inputs(chosen, options.seed, options.inputs))
    return _fuzz(by_time(chosen, options.seed, options.minutes * 60))


def _fuzz(turns: Iterator[Turn]) -> int:
    inputs, accepted, findings = Counter[str](), Counter[str](), Counter[str]()
    for name, seed, count in turns:
        summary = in_child([name], seed, count)
        inputs.update(summary.inputs)
        accepted.update(summary.accepted)
        for finding in summary.findings:
            findings[name] += 1
            _save(finding)
    for name in sorted(inputs | findings):
        counts = f"{inputs[name]:>12,} inputs {accepted[name]:>12,} accepted {findings[name]:>4} found"
        sys.stdout.write(f"{name:<16}{counts}\n")
    sys.stdout.write(f"{inputs.total():,} inputs, {findings.total()} found\n")
    return 1 if findings else 0


def _save(finding: Finding) -> None:
    FOLDER.mkdir(exist_ok=True)
    path = FOLDER / f"{finding.decoder}_{sha256(finding.data).hexdigest()[:12]}"
    path.write_bytes(finding.data)
    sys.stdout.write(f"{finding.decoder}: {finding.error}\n  python -m fuzz --replay {path}\n{finding.trace}\n")
    sys.stdout.flush()


def _replay(path: Path) -> int:
    name, data = replay(path)
    accepted, finding = tried(name, decodings()[name], data)
    said = finding.trace if finding is not None else "accepted" if accepted else "refused, as it should be"
    sys.stdout.write(f"{said}\n")
    return 0 if finding is None else 1


if __name__ == "__main__":
    sys.exit(main())
