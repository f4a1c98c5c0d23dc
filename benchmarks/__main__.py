"""`python -m benchmarks`, see bench.py."""

import sys

from benchmarks.bench import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
