"""`python -m scripts.archs`: the program is saturate/run/archs.py."""

import sys
from pathlib import Path

# also as `python scripts/archs.py`
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from saturate.run.archs import main

if __name__ == "__main__":
    sys.exit(main())
