"""``python -m seams.child CASE HOME`` runs the app of a case in a process that can be killed."""

import sys
from pathlib import Path

from seams.apps import build
from seams.factors import read

if __name__ == "__main__":
    app = build(read(sys.argv[1]), Path(sys.argv[2]))
    print("running", flush=True)
    app.run(local=True, progress=False)
