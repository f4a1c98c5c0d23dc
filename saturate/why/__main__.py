"""`torchrun ... -m saturate.why -- PROGRAM`: every rank of a program under `saturate why`."""

import sys

from saturate.why.launch import main

if __name__ == "__main__":
    sys.exit(main())
