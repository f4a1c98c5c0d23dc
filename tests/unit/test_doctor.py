"""What the doctor's probes say of what they read."""

from __future__ import annotations

import ctypes
import resource
from pathlib import Path
from typing import Any

import pytest

from scripts.probes import Row, decoders, machine, storage, training
from scripts.probes.training import Driver

H200 = Driver(names=("NVIDIA H200",) * 2, version="580.159.04", cuda=(13, 0), compute_modes=(0, 0))
ONE = ["NVIDIA H200, 140 GiB"]


def driver(**changes: Any) -> Driver:
    return Driver(
        **{
            name: changes.get(name, getattr(H200, name))
            for name in ("names", "version", "cuda", "compute_modes", "mig")
        }
    )


@pytest.mark.parametrize(
    ("row", "state", "said"),
    [
        (
            training.judge_gpu(Driver(), [], "RuntimeError: no driver", "13.2"),
            "absent",
            "docker run --gpus all",
        ),
        (training.judge_gpu(H200, ONE * 2, "", "13.0"), "ok", ""),
        (training.judge_gpu(H200, ONE, "", "13.0"), "ok", "1 of 2 are visible"),
        (training.judge_gpu(Driver(), ONE, "", "13.0"), "ok", ""),
        (training.judge_gpu(H200, [], "", None), "bad", "a torch with CUDA"),
        (
            training.judge_gpu(driver(cuda=(12, 4)), [], "RuntimeError: driver too old", "13.0"),
            "bad",
            "one for CUDA 13",
        ),
        (training.judge_gpu(H200, [], "RuntimeError: unknown error", "13.0"), "bad", "see what it said"),
        (training.judge_gpu(H200, ONE, "RuntimeError: no kernel image", "13.0"), "bad", "see what it said"),
        (
            training.judge_gpu(driver(compute_modes=(2, 0)), [], "RuntimeError: busy", "13.0"),
            "bad",
            "--compute-mode 0",
        ),
        (training.judge_gpu(driver(compute_modes=(2, 0)), ONE, "", "13.0"), "ok", "1 of 2 are visible"),
        (training.judge_gpu(driver(compute_modes=(3, 3)), ONE * 2, "", "13.0"), "warn", "one process a GPU"),
        (training.judge_gpu(driver(compute_modes=(0, 3)), ONE, "", "13.0"), "ok", "1 of 2 are visible"),
        (training.judge_gpu(driver(mig=True), ONE * 2, "", "13.0"), "warn", "MIG is on"),
        (
            training.judge_gpu(driver(mig=True), ["NVIDIA H200 MIG 1g.18gb, 16 GiB"], "", "13.0"),
            "warn",
            "MIG is on",
        ),
        (training.judge_gpu(driver(mig=True), ONE, "", "13.0"), "ok", "1 of 2 are visible"),
        (training.judge_nccl("2.30.7", 0, []), "ok", "not tried"),
        (training.judge_nccl("2.30.7", 1, [1.0]), "ok", "from two GPUs on"),
        (training.judge_nccl("2.30.7", 4, []), "warn", "less than 1 GiB free"),
        (training.judge_nccl("2.30.7", 4, [10.0] * 4), "ok", "--shm-size=1g"),
        (training.judge_nccl("2.30.7", 4, [10.0, 10.0, 10.0, 4.0]), "bad", "wrong gradients"),
        (training.judge_nccl("2.30.7", 2, "RuntimeError: NCCL Error 2"), "bad", "NCCL_DEBUG=INFO"),
        (training.judge_nccl("2.30.7", 1, "RuntimeError: NCCL Error 2"), "warn", "NCCL_DEBUG=INFO"),
        (training.judge_nccl("", 8, []), "bad", "NCCL"),
        (training.judge_nccl("", 1, []), "absent", "two GPUs"),
        (
            decoders.judge_dali({"nvidia-dali-cuda120": "2.4.0"}, importable=True, gpus=1, driver_cuda=13),
            "ok",
            "",
        ),
        (decoders.judge_dali({}, importable=True, gpus=1, driver_cuda=13), "ok", ""),
        (
            decoders.judge_dali({}, importable=False, gpus=0, driver_cuda=0),
            "absent",
            "pip install nvidia-dali-cuda120",
        ),
        (
            decoders.judge_dali({}, importable=False, gpus=1, driver_cuda=13),
            "bad",
            "pip install nvidia-dali-cuda120",
        ),
        (
            decoders.judge_dali({"nvidia-dali-cuda130": "2.4.0"}, importable=True, gpus=1, driver_cuda=12),
            "bad",
            "runs CUDA 12",
        ),
        (decoders.judge_pixels((200.0, 100.5, 49.0), "--loader x", "y"), "ok", "x works"),
        (decoders.judge_pixels((50.0, 100.0, 200.0), "--loader x", "y"), "bad", "--loader x fails: y"),
        (decoders.judge_pixels("RuntimeError: mixed", "--loader x", "y"), "bad", "--loader x fails: y"),
        (decoders.judge_engine(0, 7, 1, capabilities=None), "ok", "baseline"),
        (decoders.judge_engine(0, 0, 0, capabilities=None), "absent", "SMs decode every JPEG"),
        (decoders.judge_engine(6, 0, 0, capabilities="compute,utility"), "warn", "no `video`"),
        (decoders.judge_engine(6, 0, 0, capabilities="compute,utility,video"), "absent", "SMs decode"),
        (decoders.judge_nvdec(loads=True, used=3, codec="2.0"), "ok", "with PyAV"),
        (
            decoders.judge_nvdec(loads=True, used=3, codec="2.0", luma=decoders.LUMA + 1),
            "ok",
            "nvdec+pyav work",
        ),
        (decoders.judge_nvdec(loads=True, used=3, codec="2.0", luma=16.0), "bad", "wrong pixels"),
        (
            decoders.judge_nvdec(loads=True, used=3, codec="2.0", luma="UserError: no driver"),
            "warn",
            "--loader pyav",
        ),
        (decoders.judge_nvdec(loads=True, used=3, codec=None), "ok", "pip install PyNvVideoCodec"),
        (decoders.judge_nvdec(loads=False, used=None, codec=None), "warn", "video"),
        (decoders.judge_reader("nvimgcodec", "nvidia-nvimgcodec-cu12 0.9"), "ok", ""),
        (decoders.judge_reader("torchvision", ""), "warn", "1.8 times"),
        (decoders.judge_decord("0.6.0", {"h264": True, "hevc": True, "vp9": True}), "ok", "AV1"),
        (decoders.judge_decord("0.6.0", {}), "ok", "AV1"),
        (decoders.judge_decord("0.6.0", {"h264": True, "hevc": False}), "warn", "AV1"),
        (machine.judge_cores(16.0, 64, 1), "ok", "any loader"),
        (machine.judge_cores(16.0, 16, 2), "ok", "dali-gpu is content"),
        (machine.judge_cores(8.0, 8, 8), "warn", "few"),
        (machine.judge_cores(1.0, 8, 0), "warn", "one core"),
        (machine.judge_memory(128.0, 512.0, 1), "ok", ""),
        (machine.judge_memory(16.0, 512.0, 8), "warn", "GiB a rank"),
        (machine.judge_shm(24_000.0, 16.0, 8), "ok", ""),
        (machine.judge_shm(64.0, 16.0, 1), "warn", "--shm-size=1g"),
        (machine.judge_shm(64.0, 16.0, 8), "bad", "--shm-size=1g"),
        (machine.judge_shm(0.0, 16.0, 0), "bad", "--workers 0"),
        (machine.judge_open_files(65536, 65536), "ok", ""),
        (machine.judge_open_files(resource.RLIM_INFINITY, resource.RLIM_INFINITY), "ok", ""),
        (machine.judge_open_files(512, 4096), "warn", "ulimit -n 4096"),
        (machine.judge_open_files(64, 64), "bad", "nofile=65536"),
        (machine.judge_locked_memory(resource.RLIM_INFINITY, 8, infiniband=True), "ok", ""),
        (machine.judge_locked_memory(8 << 20, 8, infiniband=True), "warn", "memlock=-1"),
        (machine.judge_locked_memory(8 << 20, 8, infiniband=False), "ok", "InfiniBand"),
        (
            machine.judge_environment(
                {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "ACTIVE", "OMP_PROC_BIND": "false"}
            ),
            "ok",
            "",
        ),
        (
            machine.judge_environment({"CUDA_DEVICE_MAX_CONNECTIONS": "32", "CUDA_LAUNCH_BLOCKING": "0"}),
            "ok",
            "",
        ),
        (
            machine.judge_environment({"CUDA_DEVICE_MAX_CONNECTIONS": "1"}),
            "warn",
            "unset CUDA_DEVICE_MAX_CONNECTIONS",
        ),
        (
            machine.judge_environment({"OMP_PROC_BIND": "close", "OMP_WAIT_POLICY": "PASSIVE"}),
            "warn",
            "unset OMP_PROC_BIND OMP_WAIT_POLICY",
        ),
        (machine.judge_environment({"PYTORCH_ALLOC_CONF": "expandable_segments:True"}), "ok", ""),
        (machine.judge_environment({"NCCL_GRAPH_REGISTER": "1"}), "warn", "unset NCCL_GRAPH_REGISTER"),
        (
            machine.judge_environment({"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:128"}),
            "warn",
            "unset PYTORCH_CUDA_ALLOC_CONF",
        ),
        (storage.judge_cache(Path("c"), 40_000.0, writable=True), "ok", ""),
        (storage.judge_cache(Path("c"), 10.0, writable=True), "warn", "--manifest-dir"),
        (storage.judge_cache(Path("c"), 40_000.0, writable=False), "bad", "XDG_CACHE_HOME"),
    ],
)
def test_what_a_reading_means(row: Row, state: str, said: str) -> None:
    assert row.state == state, row
    assert said in row.consequence and row.consequence
    assert row.found


def test_both_dalis_name_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    builds = {"nvidia-dali-cuda130": "2.4.0", "nvidia-dali-cuda120": "2.3.0", "numpy": "2.4"}
    monkeypatch.setattr(decoders, "installed", lambda: builds)
    row = decoders.dali()
    assert row.state == "bad"
    assert row.found == "nvidia-dali-cuda120 2.3.0, nvidia-dali-cuda130 2.4.0"
    assert "pip uninstall nvidia-dali-cuda120 nvidia-dali-cuda130" in row.consequence


@pytest.mark.parametrize(
    ("folders", "built", "state", "said"),
    [
        ((), (), "absent", "not needed"),
        (("lib", "scripts"), (), "bad", "pip uninstall apex"),
        (("optimizers", "normalization"), (), "warn", "fused kernels"),
        (("optimizers", "normalization"), ("amp_C",), "ok", ""),
    ],
)
def test_which_apex(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folders: Any, built: Any, state: str, said: str
) -> None:
    for folder in folders:
        (tmp_path / "apex" / folder).mkdir(parents=True)
        (tmp_path / "apex" / "__init__.py").write_text("raise SystemExit('it was run')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(training, "has", lambda name: name in built)
    monkeypatch.setattr(training, "installed", lambda: {"apex": "0.9.10dev"} if folders else {})
    row = training.apex()
    assert row.state == state
    assert said in row.consequence


@pytest.mark.parametrize(
    ("value", "hidden"),
    [("", True), ("-1", True), ("7", True), ("0", False), ("1,0", False), ("2,0", True), ("GPU-5a", False)],
)
def test_which_gpus_a_variable_hides(value: str, hidden: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    row = training.judge_gpu(H200, [], "RuntimeError: No CUDA GPUs are available", "13.0")
    assert (row.state, "unset it" in row.consequence) == (("warn", True) if hidden else ("bad", False))


def test_a_torchvision_of_another_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    import torchvision

    def refuse(*_: Any) -> Any:
        raise RuntimeError("operator torchvision::nms does not exist")

    assert training.torch_and_torchvision().state == "ok"
    monkeypatch.setattr(torchvision.ops, "nms", refuse)
    row = training.torch_and_torchvision()
    assert row.state == "bad" and "nms does not exist" in row.found and "from one index" in row.consequence


def test_without_a_gpu_nothing_of_it_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoders, "driver", Driver)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    for probe in (decoders.dali_gpu, decoders.nvjpeg_engine, decoders.nvdec):
        assert probe() == decoders.NO_GPU


def test_a_video_made_in_memory_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("av", reason="PyAV is not installed")
    from loaders.videos import _engines
    from tests.unit import engines

    monkeypatch.setattr(_engines, "import_module", lambda name: engines.Codec())
    found = decoders.luma()
    assert isinstance(found, float) and abs(found - decoders.LUMA) < 2
    assert decoders.judge_nvdec(loads=True, used=None, codec="2.2", luma=found).state == "ok"

    def refuse(**_: Any) -> Any:
        raise RuntimeError("CUDA_ERROR_NO_DEVICE")

    monkeypatch.setattr(engines.Codec, "CreateDecoder", staticmethod(refuse))
    said = decoders.luma()
    assert isinstance(said, str) and "CUDA_ERROR_NO_DEVICE" in said


def test_numbers_are_summed_over_all_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    def all_reduce(each: list[torch.Tensor]) -> None:
        total = torch.stack(each).sum(0)
        for one in each:
            one.copy_(total)

    full, free = torch.full, [4 << 30] * 4
    monkeypatch.setattr(torch, "full", lambda size, value, device: full(size, value))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda at: (free[at], 8 << 30))
    monkeypatch.setattr(torch.cuda.nccl, "all_reduce", all_reduce)
    assert training.summed(4) == [10.0] * 4

    def fail(_: Any) -> None:
        raise RuntimeError("NCCL Error 1: unhandled cuda error\nmore")

    monkeypatch.setattr(torch.cuda.nccl, "all_reduce", fail)
    assert training.summed(2) == "RuntimeError: NCCL Error 1: unhandled cuda error"
    free[1] = 1 << 20
    assert training.summed(2) == [], "a training fills it"


class Library:
    """libnvjpeg as an H200 has it, or (`status`) without the engine's driver."""

    def __init__(self, status: int = 0) -> None:
        self.status, self.open = status, 0

    def nvjpegCreateEx(self, backend: int, _device: None, _pinned: None, _flags: Any, handle: Any) -> int:
        self.open += self.status == 0
        return self.status if backend == 3 else 1

    def nvjpegGetHardwareDecoderInfo(self, _handle: Any, count: Any, cores: Any) -> int:
        ctypes.cast(count, ctypes.POINTER(ctypes.c_uint))[0] = 7
        ctypes.cast(cores, ctypes.POINTER(ctypes.c_uint))[0] = 1
        return 0

    def nvjpegDestroy(self, _handle: Any) -> int:
        self.open -= 1
        return 0


def test_engines_are_counted_by_nvjpeg(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library()
    assert (decoders.engines(library), library.open) == ((0, 7, 1), 0)
    assert decoders.engines(Library(status=6)) == (6, 0, 0)
    monkeypatch.setattr(decoders, "driver", lambda: H200)
    monkeypatch.setattr(decoders, "nvjpeg_library", lambda: library)
    assert decoders.nvjpeg_engine().found == "7 engines, 1 core each"
    monkeypatch.setattr(decoders, "nvjpeg_library", lambda: None)
    assert decoders.nvjpeg_engine().state == "absent"


def test_dali_decodes_a_jpeg_here_and_says_when_it_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    assert decoders.dali_cpu().state == "ok"
    monkeypatch.setattr(decoders, "jpeg", lambda: b"no JPEG")
    row = decoders.dali_cpu()
    assert row.state == "bad" and "RuntimeError" in row.found
    monkeypatch.setattr(decoders, "has", lambda _: False)
    assert decoders.dali_cpu().state == "absent"
