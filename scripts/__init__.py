"""Programs, `python -m scripts.NAME`. While the imports of one run, Ctrl-C has nothing to tidy up and ends it
without a traceback."""

import os
import signal
import sys
from types import FrameType


def _interrupt(number: int, frame: FrameType | None) -> None:
    if not hasattr(sys.modules["__main__"], "main"):  # which is defined behind the imports
        os._exit(130)
    signal.default_int_handler(number, frame)


# "-m" until Python knows the program's file: not in tests, nor in processes of a program. Behind a shell's &
# Ctrl-C is not for it
if sys.argv[:1] == ["-m"] and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, _interrupt)
