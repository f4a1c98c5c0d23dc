"""The doctor: what its probes say of what they read, its processes, and one run for real.

Nothing large is imported here: the processes that doctor starts for the probes of this module import it too.
"""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from scripts import _probes, doctor
from scripts._probes import (
    LUMA,
    Driver,
    Pass,
    Row,
    judge_cache,
    judge_cores,
    judge_dali,
    judge_environment,
    judge_gpu,
    judge_locked_memory,
    judge_memory,
    judge_mount,
    judge_nccl,
    judge_nvdec,
    judge_open_files,
    judge_pixels,
    judge_reader,
    judge_reading,
    judge_shm,
)

ROOT = Path(__file__).resolve().parents[2]
H200 = Driver(
    names=("NVIDIA H200",) * 2, version="580.159.04", cuda=(13, 0), compute_modes=(0, 0)
)
ONE = ["NVIDIA H200, 140 GiB"]
SLICE = ["NVIDIA H200 MIG 1g.18gb, 16 GiB"]
DALI = {"nvidia-dali-cuda120": "2.4.0"}
NEW_DALI = {"nvidia-dali-cuda130": "2.4.0"}
UNLIMITED = resource.RLIM_INFINITY
WARM = Pass(files=200, bytes=200 * 110_000, seconds=0.02, cached=200)
MOUNTS = [
    ("/proc", "proc", "proc"),
    ("/", "ext4", "/dev/vda"),
    ("/data", "nfs4", "server:/export"),
    ("/data sets", "fuse.gcsfuse", "bucket"),
    ("/scratch", "ext4", "/dev/vdb"),
    ("/scratch", "lustre", "mds@tcp:/fs"),
    ("/ntfs", "fuseblk", "/dev/sdb1"),
    ("/dev/shm", "tmpfs", "tmpfs"),
]


def readings() -> dict[str, list[Row]]:
    """Return rows by a pattern of their state and consequence."""
    return {
        "absent .*docker run --gpus all": [
            judge_gpu(Driver(), [], "RuntimeError: no driver", "13.2")
        ],
        "ok one rank each: torchrun --nproc-per-node 2$": [
            judge_gpu(H200, ONE * 2, "", "13.0")
        ],
        "ok .* --nproc-per-node 1$": [judge_gpu(Driver(), ONE, "", "13.0")],
        "ok .*1 of 2 are visible": [
            judge_gpu(nvml, ONE, "", "13.0")
            for nvml in (
                H200,
                replace(H200, compute_modes=(2, 0)),
                replace(H200, compute_modes=(0, 3)),
                replace(H200, mig=True),
            )
        ],
        "bad .*a torch with CUDA": [judge_gpu(H200, [], "", None)],
        "bad .*one for CUDA 13": [
            judge_gpu(replace(H200, cuda=(12, 4)), [], "RuntimeError: too old", "13.0")
        ],
        "bad .*see what it said": [
            judge_gpu(H200, [], "RuntimeError: unknown error", "13.0"),
            judge_gpu(H200, ONE, "RuntimeError: no kernel image", "13.0"),
        ],
        "bad .*--compute-mode 0": [
            judge_gpu(replace(H200, compute_modes=(2, 0)), [], "busy", "13.0")
        ],
        "warn .*one process a GPU": [
            judge_gpu(replace(H200, compute_modes=(3, 3)), ONE * 2, "", "13.0")
        ],
        "warn MIG is on": [
            judge_gpu(replace(H200, mig=True), visible, "", "13.0")
            for visible in (ONE * 2, SLICE)
        ],
        "ok not tried": [judge_nccl("2.30.7", 0, [])],
        "ok needed from two GPUs on": [judge_nccl("2.30.7", 1, [1.0])],
        "ok .*--shm-size=1g": [judge_nccl("2.30.7", 4, [10.0] * 4)],
        "warn .*less than 1 GiB free": [judge_nccl("2.30.7", 4, [])],
        "bad .*wrong gradients": [judge_nccl("2.30.7", 4, [10.0, 10.0, 10.0, 4.0])],
        "bad .*NCCL": [
            judge_nccl("", 8, []),
            judge_nccl("2.30.7", 2, "RuntimeError: NCCL Error 2"),
        ],
        "warn .*NCCL_DEBUG=INFO": [
            judge_nccl("2.30.7", 1, "RuntimeError: NCCL Error 2")
        ],
        "absent .*two GPUs": [judge_nccl("", 1, [])],
        "ok .*dali-.* loaders can run": [
            judge_dali(builds, True, 1, 13) for builds in (DALI, NEW_DALI, {})
        ],
        "absent .*pip install nvidia-dali-cuda120": [judge_dali({}, False, 0, 0)],
        "bad .*pip install nvidia-dali-cuda120": [
            judge_dali({}, False, 1, 13),
            judge_dali(DALI, False, 0, 0),
        ],
        "bad .*runs CUDA 12": [judge_dali(NEW_DALI, True, 1, 12)],
        "bad .*pip uninstall nvidia-dali-cuda120 nvidia-dali-cuda130": [
            judge_dali(NEW_DALI | DALI, True, 1, 13)
        ],
        "ok x works": [judge_pixels((200.0, 100.5, 49.0), "x", "y")],
        "bad x fails: y": [
            judge_pixels(got, "x", "y")
            for got in ((50.0, 100.0, 200.0), "RuntimeError: mixed")
        ],
        "ok .*with PyAV": [judge_nvdec(True, "2.0")],
        "ok .*nvdec.pyav work": [judge_nvdec(True, "2.0", LUMA + 1)],
        "bad .*wrong pixels": [judge_nvdec(True, "2.0", 16.0)],
        "warn .*--loader pyav": [judge_nvdec(True, "2.0", "UserError: no driver")],
        "ok .*pip install PyNvVideoCodec": [judge_nvdec(True, None)],
        "warn .*compute,utility,video": [judge_nvdec(False, None)],
        "ok the fastest": [judge_reader("nvimgcodec", "nvidia-nvimgcodec-cu12 0.9")],
        "warn .*1.8 times": [judge_reader("torchvision", "")],
        "ok .*any loader": [judge_cores(16.0, 64, 1)],
        "ok .*dali-gpu is content": [judge_cores(16.0, 16, 2)],
        "warn few": [judge_cores(8.0, 8, 8)],
        "warn one core": [judge_cores(1.0, 8, 0)],
        "ok one worker a core": [judge_cores(2.0, 8, 0)],
        "ok enough for workers": [judge_memory(128.0, 512.0, 1)],
        "warn .*GiB a rank": [judge_memory(16.0, 512.0, 8)],
        "ok enough also for NCCL": [judge_shm(24_000.0, 16.0, 8)],
        "warn .*--shm-size=1g": [judge_shm(64.0, 16.0, 1)],
        "bad .*--shm-size=1g, or --workers 0": [
            judge_shm(64.0, 16.0, 8),
            judge_shm(0.0, 16.0, 0),
        ],
        "ok enough for any": [
            judge_open_files(65536, 65536),
            judge_open_files(UNLIMITED, UNLIMITED),
        ],
        "warn .*ulimit -n 4096": [judge_open_files(512, 4096)],
        "bad .*nofile=65536": [judge_open_files(64, 64)],
        "ok .*InfiniBand": [
            judge_locked_memory(UNLIMITED, 8, True),
            judge_locked_memory(8 << 20, 8, False),
        ],
        "warn .*memlock=-1": [judge_locked_memory(8 << 20, 8, True)],
        "ok nothing works against": [
            judge_environment(
                {
                    "OMP_NUM_THREADS": "1",
                    "OMP_WAIT_POLICY": "ACTIVE",
                    "OMP_PROC_BIND": "false",
                }
            ),
            judge_environment(
                {"CUDA_DEVICE_MAX_CONNECTIONS": "32", "CUDA_LAUNCH_BLOCKING": "0"}
            ),
            judge_environment({"PYTORCH_ALLOC_CONF": "expandable_segments:True"}),
        ],
        "warn unset CUDA_DEVICE_MAX_CONNECTIONS": [
            judge_environment({"CUDA_DEVICE_MAX_CONNECTIONS": "1"})
        ],
        "warn unset OMP_PROC_BIND OMP_WAIT_POLICY": [
            judge_environment({"OMP_PROC_BIND": "close", "OMP_WAIT_POLICY": "PASSIVE"})
        ],
        "warn unset NCCL_GRAPH_REGISTER": [
            judge_environment({"NCCL_GRAPH_REGISTER": "1"})
        ],
        "warn unset PYTORCH_CUDA_ALLOC_CONF": [
            judge_environment({"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:128"})
        ],
        "ok .*scanned once": [judge_cache(Path("c"), 40_000.0, True)],
        "warn .*--manifest-dir": [judge_cache(Path("c"), 10.0, True)],
        "bad .*XDG_CACHE_HOME": [judge_cache(Path("c"), 40_000.0, False)],
        "ok on this machine": [
            judge_mount(folder, MOUNTS) for folder in ("/srv", "/database", "/ntfs/x")
        ],
        "warn a network": [
            judge_mount(folder, MOUNTS)
            for folder in ("/data", "/data/train", "/data sets/train", "/scratch/x")
        ],
        "ok it is memory": [judge_mount("/dev/shm/x", MOUNTS)],
        "warn its speed": [judge_mount("/x", [])],
        "ok n workers": [judge_reading(replace(WARM, seconds=0.1, cached=0), WARM)],
        "warn 10.0 ms a file: --loader dali-fed": [
            judge_reading(replace(WARM, seconds=2.0, cached=0), WARM)
        ],
        "ok the disk's speed is unknown": [
            judge_reading(replace(WARM, cached=each), WARM) for each in (200, None)
        ],
    }


def test_what_a_reading_means() -> None:
    for pattern, rows in readings().items():
        for row in rows:
            assert row.found and re.match(pattern, f"{row.state} {row.consequence}"), (
                row
            )


def test_a_speed_names_disk_and_page_cache() -> None:
    found = judge_reading(replace(WARM, seconds=0.1, cached=0), WARM).found
    assert (
        "page cache: 10,000 files/s, 1,049 MiB/s" in found
        and "disk: 2,000 files/s" in found
    )


@pytest.mark.parametrize(
    ("value", "hidden"),
    [
        ("", True),
        ("-1", True),
        ("7", True),
        ("0", False),
        ("1,0", False),
        ("2,0", True),
        ("GPU-5a", False),
    ],
)
def test_which_gpus_a_variable_hides(
    value: str, hidden: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    row = judge_gpu(H200, [], "RuntimeError: No CUDA GPUs are available", "13.0")
    assert (row.state, "unset it" in row.consequence) == (
        ("warn", True) if hidden else ("bad", False)
    )


def test_a_torchvision_of_another_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    import torchvision

    def refuse(*_: Any) -> Any:
        raise RuntimeError("operator torchvision::nms does not exist")

    assert _probes.torch_and_torchvision().state == "ok"
    monkeypatch.setattr(torchvision.ops, "nms", refuse)
    row = _probes.torch_and_torchvision()
    assert (
        row.state == "bad"
        and "nms does not exist" in row.found
        and "from one index" in row.consequence
    )


def test_a_video_made_in_memory_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("av", reason="PyAV is not installed")
    from loaders.videos import _engines
    from tests.unit import engines

    monkeypatch.setattr(_engines, "import_module", lambda name: engines.Codec())
    found = _probes.luma()
    assert isinstance(found, float) and abs(found - LUMA) < 2

    def refuse(**_: Any) -> Any:
        raise RuntimeError("CUDA_ERROR_NO_DEVICE")

    monkeypatch.setattr(engines.Codec, "CreateDecoder", staticmethod(refuse))
    error = _probes.luma()
    assert isinstance(error, str) and "CUDA_ERROR_NO_DEVICE" in error


def test_numbers_are_summed_over_all_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    def all_reduce(each: list[torch.Tensor]) -> None:
        total = torch.stack(each).sum(0)
        for one in each:
            one.copy_(total)

    full, free = torch.full, [4 << 30] * 4
    monkeypatch.setattr(torch, "full", lambda size, value, device: full(size, value))
    monkeypatch.setattr(
        torch.cuda, "mem_get_info", lambda index: (free[index], 8 << 30)
    )
    monkeypatch.setattr(torch.cuda.nccl, "all_reduce", all_reduce)
    assert _probes.summed(4) == [10.0] * 4

    def fail(_: Any) -> None:
        raise RuntimeError("NCCL Error 1: unhandled cuda error\nmore")

    monkeypatch.setattr(torch.cuda.nccl, "all_reduce", fail)
    assert _probes.summed(2) == "RuntimeError: NCCL Error 1: unhandled cuda error"
    free[1] = 1 << 20
    assert _probes.summed(2) == [], "a training fills it"


def test_dali_that_does_not_decode_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_probes, "jpeg", lambda: b"no JPEG")
    row = _probes.dali_cpu()
    assert row.state == "bad" and "RuntimeError" in row.found
    monkeypatch.setattr(_probes, "has", lambda _: False)
    assert _probes.dali_cpu().state == _probes.package("decord").state == "absent"
    monkeypatch.setattr(_probes, "driver", Driver)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert _probes.dali_gpu() == _probes.nvdec() == _probes.NO_GPU


def test_files_are_taken_from_everywhere_and_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _probes.reading(tmp_path).state == "bad", "no file"
    _probes.some_files.cache_clear()
    for folder in range(5):
        (tmp_path / str(folder)).mkdir()
        for file in range(80):
            (tmp_path / str(folder) / f"{file}.JPEG").write_bytes(bytes(1000))
        (tmp_path / str(folder) / ".hidden").write_bytes(b"x")
    (tmp_path / "circle").symlink_to(tmp_path)
    (tmp_path / "0" / "broken").symlink_to(tmp_path / "gone")
    paths = _probes.some_files(tmp_path)
    assert len(paths) == 200 and len({Path(path).parent.name for path in paths}) == 5
    taken = _probes.read(paths)
    assert (taken.files, taken.bytes) == (200, 200_000)
    assert _probes.read(paths, limit_s=0.0).files == 1
    row = _probes.reading(tmp_path)
    assert row.state == "ok" and "200 files of 1 KiB" in row.found
    monkeypatch.setattr(_probes, "some_files", lambda _: [str(tmp_path / "gone")])
    row = _probes.reading(tmp_path)
    assert row.state == "bad" and "gone" in row.found


@pytest.mark.parametrize("symbolic", [False, True])
def test_links_to_one_file_are_one(symbolic: bool, tmp_path: Path) -> None:
    from scripts.link_set import link

    real, links = tmp_path / "real" / "a", tmp_path / "links"
    real.mkdir(parents=True)
    for file in range(40):
        (real / f"{file}.JPEG").write_bytes(b"x")
    link(tmp_path / "real", links, 2000, symbolic=symbolic)
    paths = _probes.some_files(links)
    files = {Path(path).resolve().stat().st_ino for path in paths}
    assert len(paths) == len(files) > 30, "of 200 links drawn in one folder"


def test_the_file_system_is_that_of_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import psutil

    for name in ("near", "far", "empty"):
        (tmp_path / name).mkdir()
    for name in ("near", "far"):
        (tmp_path / name / "a.JPEG").write_bytes(b"x")
    far = str(tmp_path.resolve() / "far")
    parts = [
        psutil._ntuples.sdiskpart(*part, "")
        for part in (("d", "/", "ext4"), ("s", far, "nfs4"))
    ]
    monkeypatch.setattr(psutil, "disk_partitions", lambda all: parts)
    assert _probes.file_system(tmp_path / "near").found.startswith("ext4 ")
    (tmp_path / "near" / "link.JPEG").symlink_to(tmp_path / "far" / "a.JPEG")
    _probes.some_files.cache_clear()
    row = _probes.file_system(tmp_path / "near")
    assert row.found.startswith("nfs4 ") and row.state == "warn"
    assert _probes.file_system(tmp_path / "empty").found.startswith("ext4 ")


# --- processes ----------------------------------------------------------------------------------------------


def fine() -> Row:
    print("a library says something")
    return Row(found="here", state="ok", consequence="")


def raise_an_error() -> Row:
    raise LookupError("no such\nthing")


def crash() -> Row:
    print("last words", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGSEGV)
    raise AssertionError


def leave_in_an_answer() -> Row:
    def half(connection: Connection, data: bytes, *_: Any) -> None:
        os.write(connection.fileno(), data[: len(data) // 2])
        os._exit(7)

    Connection._send = half  # type: ignore[attr-defined]
    return Row(found="here", state="ok", consequence="")


def test_a_probe_that_fails_is_a_row_and_not_the_end(
    capfd: pytest.CaptureFixture[str],
) -> None:
    probes: dict[str, Any] = {
        "a": fine,
        "b": raise_an_error,
        "c": crash,
        "d": fine,
        "e": partial(os._exit, 7),
    }
    rows = doctor.ask(probes | {"f": fine, "g": leave_in_an_answer})
    assert "".join(row.what for row in rows) == "abcdefg"
    assert [row.state for row in rows] == [
        "ok",
        "warn",
        "bad",
        "ok",
        "bad",
        "ok",
        "bad",
    ]
    found = {row.what: row.found for row in rows}
    assert found["b"] == "LookupError: no such"
    assert (
        found["c"].startswith("its process was ended by SIGSEGV: ")
        and "last words" in found["c"]
    )
    assert found["e"] == found["g"] == "its process ended with exit code 7"
    assert capfd.readouterr() == ("", "")


def test_a_probe_that_hangs_is_a_row() -> None:
    probes: Any = {"a": fine, "NCCL": partial(time.sleep, 600), "c": fine}
    rows = doctor.ask(probes, limit_s=3.0)
    assert [(row.what, row.state) for row in rows] == [
        ("a", "ok"),
        ("NCCL", "bad"),
        ("c", "ok"),
    ]
    assert (
        rows[1].found.startswith("no answer within 3 s")
        and "NCCL_P2P_DISABLE=1" in rows[1].consequence
    )


ROWS = [
    Row(what="x", found="f [red]", state="ok", consequence=""),
    Row(what="y", found="g", state="bad", consequence="mend it"),
]


def test_exit_code_table_and_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    rows = [*ROWS]
    monkeypatch.setattr(doctor, "diagnose", lambda _: rows)
    assert doctor.main([]) == 1
    table = capsys.readouterr().out
    assert "f [red]" in table, "what is found is no markup"
    assert table.index("mend it") < table.index("f [red]"), "what to change comes first"
    assert table.splitlines()[-1] == "bad: y"
    assert doctor.main(["--json"]) == 1
    expected = {"what": "y", "found": "g", "state": "bad", "consequence": "mend it"}
    assert json.loads(capsys.readouterr().out)[1] == expected
    for name in ("rich", *(name for name in sys.modules if name.startswith("rich."))):
        monkeypatch.setitem(sys.modules, name, None)
    rows.pop(0)
    assert doctor.main([]) == 1
    assert capsys.readouterr().out == "bad     y: g; mend it\nbad: y\n", "without rich"
    rows.clear()
    assert doctor.main([]) == 0
    assert capsys.readouterr().out.endswith("nothing to change\n")
    (tmp_path / "file").write_text("x")
    for name in ("gone", "file"):
        with pytest.raises(SystemExit) as ended:
            doctor.main(["--data", str(tmp_path / name)])
        assert ended.value.code == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"doctor: --data {tmp_path / name}: ")


def test_it_runs_here(tmp_path: Path) -> None:
    (tmp_path / "train" / "ant").mkdir(parents=True)
    for i in range(3):
        (tmp_path / "train" / "ant" / f"{i}.JPEG").write_bytes(_probes.jpeg())
    words = [sys.executable, "-m", "scripts.doctor", "--json", "--data", str(tmp_path)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=120)
    rows = {row["what"]: row for row in json.loads(done.stdout)}
    assert list(rows) == [name for lane in _probes.LANES for name in lane] + [
        *_probes.OF_DATA,
        *_probes.CACHE,
    ]
    assert done.stderr == "" and _probes.IF_LOST.keys() <= rows.keys()
    assert done.returncode == int(any(row["state"] == "bad" for row in rows.values()))
    for name in ("torch, torchvision", "DALI", "DALI decodes, CPU", "CPU reader"):
        assert rows[name]["state"] == "ok", rows[name]
    for row in rows.values():
        assert (
            row["consequence"] and "could not be looked at" not in row["consequence"]
        ), row
    assert "3 files of 1 KiB" in rows["--data: reading"]["found"]


def test_this_process_imports_nothing_that_could_be_broken() -> None:
    heavy = ("torch", "numpy", "nvidia", "cv2", "pynvml", "rich")
    code = f"import sys, scripts.doctor; print([name for name in {heavy} if name in sys.modules])"
    assert (
        subprocess.check_output(
            [sys.executable, "-c", code], cwd=ROOT, text=True
        ).strip()
        == "[]"
    )


def test_a_start_warns_of_a_set_that_is_larger_than_memory() -> None:
    from dataset.stores.read_ahead import told_of_size

    assert told_of_size(138 << 30, 1_281_167, 78 << 30) == (
        "the set is 138 GiB, memory 78: every epoch reads the disk, and 1,000 images/s need 110 MiB/s of it"
    )
    assert told_of_size(78 << 30, 1_281_167, 78 << 30) == ""
