"""Probes of what turns files into pixels: DALI, nvJPEG's engine, nvImageCodec, and the readers of videos."""

from __future__ import annotations

import ctypes
import importlib
import io
import os
from fractions import Fraction
from functools import partial
from importlib import util
from pathlib import Path
from typing import Any

from scripts.probes import Row, first_line, has, installed
from scripts.probes.training import driver

COLOUR = (200, 100, 50)
LUMA = 16 + sum(weight * level for weight, level in zip((65.481, 128.553, 24.966), COLOUR, strict=True)) / 255
"""COLOUR's brightness as videos have it, ITU-R BT.601."""
TOLERANCE = 4.0
"""Grey levels between a decoded image of one colour and that colour."""
VIDEO = "in a container: -e NVIDIA_DRIVER_CAPABILITIES=compute,utility,video"
NVJPEG_BACKEND_HARDWARE = 3
"""nvjpeg.h, nvjpegBackend_t."""
NO_GPU = Row(found="no GPU", state="absent", consequence="images and videos are decoded by the CPU")


def dali() -> Row:
    builds = {name: version for name, version in installed().items() if name.startswith("nvidia-dali-cuda")}
    on = driver()
    return judge_dali(builds, importable=has("nvidia.dali"), gpus=len(on.names), driver_cuda=on.cuda[0])


def judge_dali(builds: dict[str, str], *, importable: bool, gpus: int, driver_cuda: int) -> Row:
    """Judge which DALI is installed. `builds`: distribution -> version; `driver_cuda`: major version, 0 when
    unknown."""
    found = ", ".join(f"{name} {version}" for name, version in sorted(builds.items()))
    if len(builds) > 1:
        return Row(
            found=found,
            state="bad",
            consequence="they own one folder and have overwritten each other: pip uninstall "
            f"{' '.join(sorted(builds))}, then install one",
        )
    if not importable:
        said = "no dali-* loader: pip install nvidia-dali-cuda120, or --loader torchvision"
        return Row(
            found=found or "not installed", state="bad" if gpus or found else "absent", consequence=said
        )
    needs = max((int(name.removeprefix("nvidia-dali-cuda")[:2] or 0) for name in builds), default=0)
    if gpus and 0 < driver_cuda < needs:
        said = (
            f"the driver runs CUDA {driver_cuda}: pip uninstall it, then install nvidia-dali-cuda120, "
            "which runs on both"
        )
        return Row(found=found, state="bad", consequence=said)
    return Row(
        found=found or "bundled with the image, unknown to pip",
        state="ok",
        consequence="the dali-* loaders can run; see the next rows",
    )


def dali_cpu() -> Row:
    if not has("nvidia.dali"):
        return Row(found="no DALI", state="absent", consequence="see the row of DALI")
    return judge_pixels(decode(device=None), "--loader dali-cpu", "--loader torchvision; reinstall DALI")


def dali_gpu() -> Row:
    import torch

    if not torch.cuda.is_available():
        return NO_GPU
    if not has("nvidia.dali"):
        return Row(found="no DALI", state="absent", consequence="see the row of DALI")
    return judge_pixels(
        decode(device=torch.device("cuda", 0)),
        "--loader dali-gpu",
        f"--loader dali-cpu or torchvision; {VIDEO}",
    )


def judge_pixels(decoded: tuple[float, ...] | str, loader: str, instead: str) -> Row:
    """Judge the mean colour that was decoded of an image that is COLOUR, or what went wrong instead."""
    consequence = f"{loader} fails: {instead}"
    if isinstance(decoded, str):
        return Row(found=decoded, state="bad", consequence=consequence)
    if max(abs(got - sent) for got, sent in zip(decoded, COLOUR, strict=True)) > TOLERANCE:
        return Row(
            found=f"a JPEG of colour {COLOUR} came out as {decoded}", state="bad", consequence=consequence
        )
    found = "a JPEG made in memory was decoded, cropped and resized by the loaders' own pipeline"
    return Row(found=found, state="ok", consequence=f"{loader} works")


def jpeg(width: int = 64, height: int = 48) -> bytes:
    """Return a small JPEG of COLOUR."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.new("RGB", (width, height), COLOUR).save(buffer, "JPEG", quality=95)
    return buffer.getvalue()


def decode(device: Any) -> tuple[float, ...] | str:
    """Return the mean colour of `jpeg()` through loaders/images/_pipeline.py, or why it cannot be had.
    `device` None: DALI on the CPU."""
    import numpy as np
    import torch

    from contracts import Pixels, UserError
    from loaders.images._dali_rows import Prepared, blank_rows
    from loaders.images._pipeline import Runner, build

    image = Prepared(
        blank_rows(1, (16, 16)),
        [np.frombuffer(jpeg(), np.uint8)],
        starts=np.array([[0, 0]], np.int32),
        shapes=np.array([[48, 64]], np.int32),
        windows=np.array([[0, 0, 48, 64]], np.float32),
        sizes=np.array([[16, 16]], np.float32),
    )
    stream = None if device is None else torch.cuda.Stream(device)
    runner = Runner(
        partial(
            build,
            batch_size=1,
            threads=1,
            device=device,
            reads=False,
            pixels=Pixels(mean=(0, 0, 0), std=(1, 1, 1)),
        ),
        warm=image,
        diagnose=lambda _: set(),
        again=lambda batch, _: batch,
        output_stream=None if stream is None else stream.cuda_stream,
    )
    try:
        for (images, _), _ in runner.run([image]):
            if stream is None:
                mean = np.asarray(images.as_tensor()).mean((0, 1, 2))
            else:
                with torch.cuda.stream(stream):
                    mean = 255 * torch.from_dlpack(images.as_tensor()).float().mean((0, 1, 2)).cpu().numpy()
            return tuple(round(float(value), 1) for value in mean)
    except (UserError, RuntimeError, OSError, ImportError) as error:
        return first_line(error)
    return "DALI gave no batch"


def nvjpeg_engine() -> Row:
    if not driver().names:
        return NO_GPU
    library = nvjpeg_library()
    if library is None:
        return Row(
            found="libnvjpeg is not here to be asked",
            state="absent",
            consequence="DALI brings its own: see the row above",
        )
    return judge_engine(*engines(library), capabilities=os.environ.get("NVIDIA_DRIVER_CAPABILITIES"))


def nvjpeg_library() -> Any:
    """Return the first libnvjpeg that loads: of the packages, then of the system. None when there is none."""
    spec = util.find_spec("nvidia")
    packages = (spec.submodule_search_locations or ()) if spec else ()
    packaged = [str(path) for folder in packages for path in sorted(Path(folder).glob("*/lib/libnvjpeg.so*"))]
    for name in (*packaged, "libnvjpeg.so.13", "libnvjpeg.so.12", "libnvjpeg.so"):
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None


def engines(library: Any) -> tuple[int, int, int]:
    """Return (status of the hardware back end, engines, cores an engine), from nvJPEG itself."""
    handle = ctypes.c_void_p()
    count = ctypes.c_uint()
    cores = ctypes.c_uint()
    status = library.nvjpegCreateEx(
        NVJPEG_BACKEND_HARDWARE, None, None, ctypes.c_uint(0), ctypes.byref(handle)
    )
    if status == 0:
        status = library.nvjpegGetHardwareDecoderInfo(handle, ctypes.byref(count), ctypes.byref(cores))
        library.nvjpegDestroy(handle)
    return status, count.value, cores.value


def judge_engine(status: int, count: int, cores: int, *, capabilities: str | None) -> Row:
    """Judge nvJPEG's hardware engine. `capabilities`: NVIDIA_DRIVER_CAPABILITIES, None outside NVIDIA's
    containers."""
    if status == 0 and count:
        found = f"{count} engine{'s' * (count > 1)}, {cores} core{'s' * (cores > 1)} each"
        return Row(
            found=found,
            state="ok",
            consequence="dali-gpu shares baseline JPEGs between it and the SMs; progressive ones get none",
        )
    found = f"none (nvJPEG's status {status}, {count} engines)"
    if capabilities is not None and not {"video", "all"} & set(capabilities.split(",")):
        said = f"the container has no `video`: the SMs decode every JPEG; {VIDEO}"
        return Row(
            found=f"{found}, NVIDIA_DRIVER_CAPABILITIES={capabilities}", state="warn", consequence=said
        )
    return Row(
        found=found,
        state="absent",
        consequence=f"the SMs decode every JPEG. A100, H100, H200 have one; {VIDEO}",
    )


def nvdec() -> Row:
    if not driver().names:
        return NO_GPU
    try:
        ctypes.CDLL("libnvcuvid.so.1")
        loads = True
    except OSError:
        loads = False
    import torch

    codec = installed().get("pynvvideocodec")
    tried = loads and codec and has("av") and torch.cuda.is_available()
    return judge_nvdec(loads=loads, used=decoder_utilisation(), codec=codec, luma=luma() if tried else None)


def luma() -> float | str | None:
    """Return the mean brightness of a video of COLOUR that NVDEC has decoded, or why it cannot be had; None
    when there is nothing to try it with."""
    import torch
    from av import VideoFrame
    from av.codec import CodecContext
    from av.error import FFmpegError

    from contracts import UserError
    from loaders.videos._engines import Decoder, import_codec

    side = 256
    try:
        encoder = CodecContext.create("libx264", "w")
        encoder.width = encoder.height = side
        encoder.pix_fmt = "yuv420p"
        encoder.framerate = Fraction(25)
        picture = VideoFrame(side, side, "rgb24")
        picture.planes[0].update(bytes(COLOUR) * (side * picture.planes[0].line_size // 3))
        packets = [*encoder.encode(picture.reformat(format="yuv420p")), *encoder.encode(None)]
    except (FFmpegError, ValueError):  # this FFmpeg has no encoder
        return None
    try:
        if torch.cuda.is_available():
            torch.cuda.init()
        decoder = Decoder(import_codec(), 0, "h264", 0, (side, side))
        decoder.begin(side, side)
        fed = (
            decoder.feed(packet.buffer_ptr, packet.buffer_size, at, shown=True)
            for at, packet in enumerate(packets)
        )
        surfaces = [surface for came in fed for _, surface in came]
        surfaces += [surface for _, surface in decoder.finish()]
        return float(surfaces[0][:side].float().mean().item())
    except (UserError, RuntimeError, ValueError, IndexError) as error:  # Undecodable is a ValueError
        return first_line(error)


def decoder_utilisation() -> int | None:
    """Return how busy the first GPU's NVDEC is, per cent; None where NVML does not say."""
    try:
        import pynvml

        pynvml.nvmlInit()
        return int(pynvml.nvmlDeviceGetDecoderUtilization(pynvml.nvmlDeviceGetHandleByIndex(0))[0])
    except Exception:  # as in training.driver
        return None


def judge_nvdec(*, loads: bool, used: int | None, codec: str | None, luma: float | str | None = None) -> Row:
    """Judge video decoding on the GPU. `loads`: libnvcuvid; `codec`: the version of PyNvVideoCodec; `luma`:
    see luma()."""
    said = "utilisation cannot be read" if used is None else f"{used} % in use"
    found = (
        f"libnvcuvid {'loads' if loads else 'does not load'}, {said}, PyNvVideoCodec "
        f"{codec or 'not installed'}"
    )
    if not loads:
        return Row(found=found, state="warn", consequence=f"videos cannot be decoded on the GPU; {VIDEO}")
    if codec is None or luma is None:
        said = (
            "nvdec can run, with PyAV"
            if codec
            else "dali-video can run; for nvdec: pip install PyNvVideoCodec"
        )
        return Row(found=f"{found}; not tried", state="ok", consequence=f"--loader {said}")
    if isinstance(luma, str):
        return Row(
            found=f"{found}; {luma}",
            state="warn",
            consequence="no videos on the GPU: --loader pyav; see what it said",
        )
    if abs(luma - LUMA) > TOLERANCE:
        found = f"{found}; a video of brightness {LUMA:.0f} came out as {luma:.0f}"
        return Row(
            found=found,
            state="bad",
            consequence="--loader nvdec has wrong pixels: --loader pyav; reinstall PyNvVideoCodec",
        )
    return Row(
        found=f"{found}; a video made in memory was decoded",
        state="ok",
        consequence="--loader nvdec and nvdec+pyav work",
    )


def reader() -> Row:
    from loaders.images.decoders import choose

    known = installed()
    codec = next(
        (
            f"{name} {version}"
            for name, version in sorted(known.items())
            if name.startswith("nvidia-nvimgcodec-cu")
        ),
        "",
    )
    return judge_reader(choose("auto"), codec)


def judge_reader(chosen: str, codec: str) -> Row:
    """Judge the decoder of JPEGs on the CPU. `chosen`: what `--reader auto` takes; `codec`: nvImageCodec's
    distribution, empty when there is none."""
    if chosen == "nvimgcodec":
        found = (
            f"--reader auto takes nvimgcodec ({codec or 'bundled'}): decodes regions, PIL's pixels on a probe"
        )
        return Row(found=found, state="ok", consequence="the fastest that --loader torchvision has")
    why = f"{codec} fails or has other pixels than PIL" if codec else "nvImageCodec is not installed"
    said = "the torchvision loader is up to 1.8 times slower: pip install --upgrade nvidia-nvimgcodec-cu12"
    return Row(found=f"--reader auto takes {chosen}; {why}", state="warn", consequence=said)


LIMITS = "refuses AV1; wrong frames after edit lists, in MPEG-TS and open GOPs: re-encode such files, or PyAV"


def decord() -> Row:
    if not has("decord"):
        return Row(
            found="not installed",
            state="absent",
            consequence="needed for videos only; it has no build for ARM",
        )
    try:
        version = importlib.import_module("decord").__version__
    except Exception as error:  # ImportError, OSError for a library, AttributeError beside a newer NumPy
        return Row(
            found=first_line(error),
            state="warn",
            consequence="no videos through decord: pip install --force-reinstall decord",
        )
    return judge_decord(version, codecs())


def codecs() -> dict[str, bool]:
    """Return codec -> whether the libavcodec that is loaded has a decoder; empty when it cannot be asked."""
    try:
        loaded = next(
            line.split()[-1]
            for line in Path("/proc/self/maps").read_text().splitlines()
            if "libavcodec" in line
        )
        find = ctypes.CDLL(loaded).avcodec_find_decoder_by_name
    except (OSError, StopIteration, AttributeError):
        return {}
    find.restype = ctypes.c_void_p
    find.argtypes = [ctypes.c_char_p]
    return {name: bool(find(name.encode())) for name in ("h264", "hevc", "vp9")}


def judge_decord(version: str, known: dict[str, bool]) -> Row:
    """Judge decord. `known`: codec -> whether its libavcodec has it, empty when that could not be asked."""
    missing = [name for name, there in known.items() if not there]
    there = " ".join(name for name in known if name not in missing) or "codecs unknown"
    if missing:
        return Row(found=f"{version}, {there}, no {' '.join(missing)}", state="warn", consequence=LIMITS)
    return Row(found=f"{version}, {there}", state="ok", consequence=LIMITS)


def pyav() -> Row:
    said = "the reference for videos: what other decoders are not exact for goes to it"
    return presence(
        "av",
        works=said,
        absent="needed for videos only: pip install av",
        broken="pip install --force-reinstall av",
    )


def torchcodec() -> Row:
    said = "it needs the system's FFmpeg (apt install ffmpeg) and its own torch"
    return presence(
        "torchcodec",
        works="--loader torchcodec works, as pyav does for the same files",
        absent="not needed",
        broken=said,
    )


def loaders() -> Row:
    """Say which loaders of the table find their packages and a GPU here."""
    from loaders import LOADERS, installed

    gpu = bool(driver().names)
    lacking = {
        name: [package for package in spec.packages if not installed(package)]
        + ["a GPU"] * (spec.gpu == "must" and not gpu)
        for name, spec in LOADERS.items()
    }
    absent = [f"{name} (lacks {' and '.join(what)})" for name, what in lacking.items() if what]
    return Row(
        found=", ".join(name for name, what in lacking.items() if not what),
        state="ok",
        consequence=f"not here: {', '.join(absent)}" if absent else "all can be tried",
    )


def presence(module: str, *, works: str, absent: str, broken: str) -> Row:
    """Whether an optional package is here and can be imported."""
    if not has(module):
        return Row(found="not installed", state="absent", consequence=absent)
    try:
        return Row(found=str(importlib.import_module(module).__version__), state="ok", consequence=works)
    except Exception as error:  # torchcodec: RuntimeError without FFmpeg
        return Row(found=first_line(error), state="warn", consequence=broken)
