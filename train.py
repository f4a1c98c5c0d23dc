"""Train: config -> split -> plan -> loader -> model -> step -> loop. `--help-all` lists every setting.

The program is saturate/run/train.py.
"""

from saturate.run.train import program

if __name__ == "__main__":
    program()
