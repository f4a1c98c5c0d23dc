"""Predict: `python predict.py NEW --resume best.pt` says what a trained network says of files.

It is train.py with `--predict NEW`; the program is saturate/run/predict.py.
"""

import sys

if __name__ == "__main__":
    sys.argv[1:1] = ["--predict"]
    from saturate.run.train import program

    program()
