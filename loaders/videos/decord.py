"""`decord`: decord's reader in worker processes, for files that it counts right; pyav decodes the others."""

from __future__ import annotations

import os
from collections.abc import Iterator

from saturate.contracts import Feed, UserError
from saturate.dataset.videos.columns import Flags, Videos
from saturate.loaders import Undecodable
from saturate.loaders.videos._planes import Picture, rgb
from saturate.loaders.videos._worker import ClipLoader, same_times
from saturate.loaders.videos.exact import Claim
from saturate.loaders.videos.pyav import Pyav
from saturate.system.processes import uninterrupted

EXACT = Claim(
    kinds={
        **dict.fromkeys(("h264", "hevc", "vp9"), ("mp4", "mkv")),
        "mpeg4": ("mp4", "avi"),
        "mjpeg": ("avi",),
    },
    flags=Flags.OBLONG_PIXELS
    | Flags.UNALIGNED
    | Flags.HIDDEN_FRAMES
    | Flags.SHOWN_AGAIN,
    rotated=("mp4",),
)


class Decord:
    """saturate.loaders.videos._worker.Reader, with a decord reader that lives for one clip.

    It indexes the whole file, and its memory grows with every seek.
    """

    decoded = None

    def __init__(self, columns: Videos) -> None:
        import decord

        decord.logging.set_level(decord.logging.QUIET)
        self._columns = columns
        self._decord = decord

    def __call__(
        self, sample: int, path: bytes, frames: list[int]
    ) -> Iterator[tuple[int, Picture]]:
        try:
            reader = self._decord.VideoReader(
                os.fsdecode(path), ctx=self._decord.cpu(0), num_threads=1
            )
            # all times are looked at: where any frame is elsewhere, those asked for may be other pictures
            every = list(range(len(reader)))
            same_times(
                self._columns, sample, every, reader.get_frame_timestamp(every)[:, 0]
            )
            for frame in frames:
                pixels = reader[frame].asnumpy()
                # narrow ones, whose rows are padded by more than a third: it takes that for channels
                if pixels.shape[2:] != (3,):
                    raise Undecodable(f"decord gives {pixels.shape[2]} channels")
                yield frame, rgb(pixels)
        except Exception as error:
            raise Undecodable(str(error)) from error


def open(feed: Feed[Videos]) -> ClipLoader:
    try:
        with uninterrupted():
            # no reader before the workers are forked: its threads would not be there
            import decord  # noqa: F401
    except (ImportError, OSError) as error:
        raise UserError(
            f"--loader decord: decord cannot be imported ({error}): "
            "pip install decord (x86-64 only), or --loader pyav"
        ) from None
    return ClipLoader(feed, "decord", Decord, Pyav)
