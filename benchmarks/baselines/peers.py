"""Other libraries' stores of the same images, each written and read as its documentation has it.

Uses nothing of ours on purpose: it is what the suite `sources` compares with. All decode with PIL, crop and
resize in the workers, and leave the pixels uint8: they are normalised on the device, which is faster. Shards
are small, so that each worker has several.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from benchmarks.baselines.pytorch import MEAN, STD

Files = Sequence[tuple[str, int]]
"""(path of an image, its label) of each sample."""
Decode = Callable[[bytes], torch.Tensor]
"""An image's file -> uint8 [3, size, size]."""
SHARDS = 64
"""Shards of a store, about: each of 8 workers has several."""


def shard_bytes(files: Files) -> int:
    """Return the bytes of a shard."""
    return max(sum(Path(path).stat().st_size for path, _ in files) // SHARDS, 1 << 16)


def decoder(size: int) -> Decode:
    """Return what decodes a file with PIL and gives a random resized crop of it."""
    from torchvision import transforms

    steps = transforms.Compose(
        [transforms.RandomResizedCrop(size), transforms.PILToTensor()]
    )

    def decode(content: bytes) -> torch.Tensor:
        with Image.open(io.BytesIO(content)) as image:
            found: torch.Tensor = steps(image.convert("RGB"))
            return found

    return decode


def write_webdataset(target: Path, files: Files) -> None:
    """Write tar shards with WebDataset's own writer."""
    webdataset = import_module("webdataset")
    with webdataset.ShardWriter(
        f"{target}/%05d.tar", maxsize=shard_bytes(files), verbose=0
    ) as shards:
        for number, (path, label) in enumerate(files):
            shards.write(
                {
                    "__key__": f"{number:08d}",
                    "jpg": Path(path).read_bytes(),
                    "cls": label,
                }
            )


def read_webdataset(
    target: Path, decode: Decode, *, batch_size: int, **how: Any
) -> Any:
    """Return a loader of WebDataset's shards: shuffled by shard and in a buffer, batched in the workers."""
    webdataset = import_module("webdataset")
    shards = [str(path) for path in sorted(target.glob("*.tar"))]
    data = (
        webdataset.WebDataset(shards, shardshuffle=len(shards))
        .shuffle(1000)
        .to_tuple("jpg", "cls")
        .map_tuple(decode, int)
        .batched(batch_size)
    )
    return webdataset.WebLoader(data, batch_size=None, **how)


def one_of_litdata(sample: tuple[str, int]) -> dict[str, Any]:
    """Return what litdata stores of a sample; its writing processes need it by name."""
    path, label = sample
    return {"image": Path(path).read_bytes(), "label": label}


def write_litdata(target: Path, files: Files) -> None:
    """Write chunks by litdata's `optimize`."""
    how = {
        "chunk_bytes": shard_bytes(files),
        "num_workers": 4,
        "start_method": "fork",
        "verbose": False,
    }
    import_module("litdata").optimize(
        fn=one_of_litdata, inputs=list(files), output_dir=str(target), **how
    )


def read_litdata(target: Path, decode: Decode, *, batch_size: int, **how: Any) -> Any:
    """Return litdata's own loader of its chunks, shuffled."""
    litdata = import_module("litdata")

    class Images(litdata.StreamingDataset):  # type: ignore[name-defined]
        def __getitem__(self, index: Any) -> tuple[torch.Tensor, int]:
            sample = super().__getitem__(index)
            return decode(sample["image"]), sample["label"]

    return litdata.StreamingDataLoader(
        Images(str(target), shuffle=True), batch_size=batch_size, **how
    )


def write_streaming(target: Path, files: Files) -> None:
    """Write MDS shards, not compressed, with mosaicml-streaming's own writer."""
    writer = import_module("streaming").MDSWriter
    columns = {"image": "bytes", "label": "int"}
    with writer(
        out=str(target), columns=columns, size_limit=shard_bytes(files)
    ) as shards:
        for path, label in files:
            shards.write({"image": Path(path).read_bytes(), "label": label})


def read_streaming(target: Path, decode: Decode, *, batch_size: int, **how: Any) -> Any:
    """Return mosaicml-streaming's own loader of its shards, shuffled."""
    streaming = import_module("streaming")
    streaming.base.util.clean_stale_shared_memory()  # of a process that was killed

    class Images(streaming.StreamingDataset):  # type: ignore[name-defined]
        def __getitem__(self, index: Any) -> tuple[torch.Tensor, int]:
            sample = super().__getitem__(index)
            return decode(sample["image"]), sample["label"]

    data = Images(local=str(target), shuffle=True, batch_size=batch_size)
    return streaming.StreamingDataLoader(data, batch_size=batch_size, **how)


def write_datasets(target: Path, files: Files) -> None:
    """Write Arrow files by `save_to_disk` of Hugging Face's datasets."""
    datasets = import_module("datasets")
    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.Value("int64")}
    )
    images = [
        {"bytes": Path(path).read_bytes(), "path": Path(path).name} for path, _ in files
    ]
    columns = {"image": images, "label": [label for _, label in files]}
    datasets.Dataset.from_dict(columns, features=features).save_to_disk(str(target))


def read_datasets(target: Path, decode: Decode, *, batch_size: int, **how: Any) -> Any:
    """Return PyTorch's loader of a Hugging Face dataset, its Arrow files mapped, shuffled by sample."""
    datasets = import_module("datasets")
    data = datasets.load_from_disk(str(target)).cast_column(
        "image", datasets.Image(decode=False)
    )

    def decoded(rows: dict[str, Any]) -> dict[str, Any]:
        return {
            "image": [decode(image["bytes"]) for image in rows["image"]],
            "label": rows["label"],
        }

    data = data.with_transform(decoded)
    return DataLoader(data, batch_size, shuffle=True, collate_fn=collated, **how)


def collated(samples: list[dict[str, Any]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the batch of rows of Hugging Face's datasets."""
    images = torch.stack([sample["image"] for sample in samples])
    return images, torch.tensor([sample["label"] for sample in samples])


class Loose(Dataset[Any]):
    """(uint8 [3, size, size], label) of loose files."""

    def __init__(self, files: Files, decode: Decode) -> None:
        self.files = files
        self.decode = decode

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Any:
        path, label = self.files[index]
        return self.decode(Path(path).read_bytes()), label


@dataclass(frozen=True, kw_only=True)
class Peer:
    """One library: the modules that it needs, and how its store is written and read."""

    package: str  # as pip calls it
    write: Callable[[Path, Files], None]
    read: Callable[..., Any]


PEERS = {
    "webdataset": Peer(
        package="webdataset", write=write_webdataset, read=read_webdataset
    ),
    "litdata": Peer(package="litdata", write=write_litdata, read=read_litdata),
    "streaming": Peer(
        package="mosaicml-streaming", write=write_streaming, read=read_streaming
    ),
    "datasets": Peer(package="datasets", write=write_datasets, read=read_datasets),
}
"""Library, by the name that it is imported under."""
LOOSE = "loose"
"""Loose files behind PyTorch's own DataLoader, with the same decoder and transform."""


def loader(
    name: str,
    target: Path,
    files: Files,
    *,
    size: int,
    batch_size: int,
    workers: int,
    pinned: bool,
) -> Any:
    """Return a library's loader of `files`, whose store is written below `target` unless it is there.

    Raises ImportError where the library, or one that it needs, is not installed.
    """
    how = {
        "num_workers": workers,
        "pin_memory": pinned,
        "persistent_workers": workers > 0,
    }
    read: Callable[..., Any]
    if name == LOOSE:
        data = Loose(files, decoder(size))
        return DataLoader(data, batch_size, shuffle=True, **how)  # type: ignore[arg-type]
    peer = PEERS[name]
    import_module(name)
    whole = target / f"{name}.whole"
    if not whole.exists():
        (target / name).mkdir(parents=True, exist_ok=True)
        peer.write(target / name, files)
        whole.touch()
    read = partial(peer.read, target / name, decoder(size), batch_size=batch_size)
    return read(**how)


def batches(loader: Any, device: torch.device) -> Iterator[torch.Tensor]:
    """Yield the images of one epoch, on the device, normalised as ours are."""
    dtype = torch.float16 if device.type == "cuda" else torch.float32
    mean, std = (
        255 * torch.tensor(each, device=device).view(1, 3, 1, 1) for each in (MEAN, STD)
    )
    for images, labels in loader:
        labels.to(device, non_blocking=True) if isinstance(
            labels, torch.Tensor
        ) else torch.tensor(labels)
        moved = images.to(device, non_blocking=True).to(
            memory_format=torch.channels_last
        )
        yield ((moved.float() - mean) / std).to(dtype)
