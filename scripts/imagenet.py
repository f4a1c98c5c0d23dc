"""`python -m scripts.imagenet`: the program is saturate/run/imagenet.py."""

import sys
from pathlib import Path

# also as `python scripts/imagenet.py`
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from saturate.run.imagenet import main

if __name__ == "__main__":
    sys.exit(main())
