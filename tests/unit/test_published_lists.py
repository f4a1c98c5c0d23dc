"""Lists of Kinetics, UCF101, HMDB51 and Something-Something, by the commands of docs/video.md."""

from __future__ import annotations

import csv
import json
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = {
    "annotations/train.csv": "label,youtube_id,time_start,time_end,split,is_cc\n"
    '"air drumming",--3ouPhoy2A,20,30,train,0\nabseiling,0T_2,104,114,train,0\n',
    "ucfTrainTestlist/trainlist01.txt": "Archery/v_g08.avi 3\r\nApplyLipstick/v_g09.avi 2\r\n",
    "ucfTrainTestlist/testlist01.txt": "Archery/v_g01.avi\r\n",
    "testTrainMulti_7030_splits/wave_test_split1.txt": "wave_0.avi 0 \nwave_1.avi 1 \nwave_2.avi 2 \n",
    "something-something-v2-train.json": json.dumps(
        [{"id": "9", "label": "a box", "template": "Moving [something], slowly"}]
    ),
}
LISTS = [
    {
        "train.csv": [
            ["train/--3ouPhoy2A_000020_000030.mp4", "air drumming"],
            ["train/0T_2_000104_000114.mp4", "abseiling"],
        ]
    },
    {
        "train.txt": [
            ["Archery/v_g08.avi", "Archery"],
            ["ApplyLipstick/v_g09.avi", "ApplyLipstick"],
        ],
        "val.txt": [["Archery/v_g01.avi", "Archery"]],
    },
    {
        "train.txt": [["wave/wave_1.avi", "wave"]],
        "val.txt": [["wave/wave_2.avi", "wave"]],
    },
    {"train.csv": [["20bn-something-something-v2/9.webm", "Moving something, slowly"]]},
]


@pytest.mark.parametrize("place", range(len(LISTS)))
def test_a_command_writes_the_list(place: int, tmp_path: Path) -> None:
    text = (ROOT / "docs" / "video.md").read_text().partition("## Lists")[2]
    command = re.findall(r"```bash\n(.*?)```", text, re.DOTALL)[place]
    for name, content in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content.encode())
    subprocess.run(["bash", "-ec", command], cwd=tmp_path, check=True)
    for name, rows in LISTS[place].items():
        lines = (tmp_path / name).read_text().splitlines()
        separator = "," if name.endswith("csv") else " "
        assert list(csv.reader(lines, delimiter=separator)) == rows
