"""`python -m evenq`: the command line, also where the folder of `evenq` is not in PATH."""

from evenq.cli.__main__ import main

if __name__ == "__main__":
    raise SystemExit(main())
