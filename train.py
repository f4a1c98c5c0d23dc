"""Train: settings -> assembly -> step -> loader -> loop. `--help-all` lists every setting.

The program is saturate/run/train.py.
"""

from saturate.run.train import program

if __name__ == "__main__":
    program()
