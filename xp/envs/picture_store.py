"""The store of pictures: their bytes lie once, by their digest, which messages and records have."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

from xp.envs.base import Picture
from xp.envs.picture_bytes import PictureFault, base64_png, decoded, opened_image, png_uri
from xp.errors import ExitCode, XpError
from xp.lib.atomic import private_directory, replacing, sync_directory
from xp.spec.model import Images

VARIABLE: Final = "XP_PICTURES"
"""Environment variable with the directory of the store, for the processes of environments."""
DIRECTORY: Final = "pictures"
"""Directory of the store in the outputs."""
THUMBNAIL_PIXELS: Final = 128 * 128


class PictureStore:
    """Pictures by the sha256 of their bytes.

    Args:
        directory: its directory, which is made with the first picture; several processes may share it. None means a
            directory that ends with this process.
    """

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory

    @property
    def directory(self) -> Path:
        if self._directory is None:
            return _temporary()
        return self._directory

    @staticmethod
    def of_environ(environ: Mapping[str, str]) -> PictureStore:
        """The store of a stage's processes, or one that ends with this process where there is none."""
        directory = environ.get(VARIABLE)
        return PictureStore(None if directory is None else Path(directory))

    @staticmethod
    def of_stage() -> PictureStore:
        """The store of the stage that this process belongs to, whose working directory is the outputs root."""
        return PictureStore(Path(os.environ.get(VARIABLE) or Path(DIRECTORY).absolute()))

    def keep(self, data: bytes) -> Picture:
        """Stores the bytes of a picture; raises PictureFault if they are none, or a too large one."""
        image, media_type = opened_image(data)
        digest = hashlib.sha256(data).hexdigest()
        file = self.file(digest)
        if not file.is_file():
            file.parent.mkdir(parents=True, exist_ok=True)
            with replacing(file) as temporary:
                temporary.write_bytes(data)
            sync_directory(file.parent)
        width, height = image.size
        return Picture(
            sha256=digest, media_type=media_type, width=width, height=height, size=len(data)
        )

    def file(self, digest: str) -> Path:
        return self.directory / digest[:2] / digest

    def data(self, digest: str) -> bytes:
        """The bytes of a picture; raises XpError(TASKS) if the store lacks it."""
        try:
            return self.file(digest).read_bytes()
        except OSError as error:
            raise XpError(
                f"the picture {digest[:12]} cannot be read from {self.directory}: {error.strerror}\ncopy this directory"
                " with the task sets and the runs, or run `python -m xp prepare`, which makes the pictures again",
                ExitCode.TASKS,
            ) from None

    def uri(self, digest: str, max_pixels: int | None = None) -> str:
        """A picture as a data URI of a PNG, as `image` makes it."""
        return png_uri(base64_png(self.image(digest, max_pixels)))

    def thumbnail(self, digest: str) -> str | None:
        """A small copy for a page as a data URI: offline, and without a script. None means that the store lacks it."""
        try:
            return self.uri(digest, THUMBNAIL_PIXELS)
        except (XpError, PictureFault):
            return None

    def image(self, digest: str, max_pixels: int | None = None) -> Any:
        """A picture as PIL's image in RGB, on white where it is transparent, turned as its camera says.

        Args:
            digest: sha256 of its bytes.
            max_pixels: a larger picture is made smaller. None means that it keeps its size.
        """
        from PIL import Image

        image, _ = opened_image(self.data(digest))
        if image.mode.startswith("I"):
            # 16 bits; PIL's own conversion cuts them at 255.
            image = image.convert("I").point(lambda value: value / 256).convert("L")
        if image.has_transparency_data:
            image = image.convert("RGBA")
            ground = Image.new("RGBA", image.size, "white")
            image = Image.alpha_composite(ground, image)
        image = image.convert("RGB")
        num_pixels = image.width * image.height
        if max_pixels is not None and num_pixels > max_pixels:
            factor = (max_pixels / num_pixels) ** 0.5
            size = (max(1, int(image.width * factor)), max(1, int(image.height * factor)))
            image = image.resize(size, Image.Resampling.BICUBIC)
        return image


def store_of(images: Images | None, environ: Mapping[str, str]) -> PictureStore | None:
    """The store for an environment's pictures. None means that they are refused.

    Args:
        images: limits of pictures. None means that they are off.
        environ: variables with the place of the store.
    """
    if images is None:
        return None
    return PictureStore.of_environ(environ)


@cache
def _temporary() -> Path:
    return private_directory("pictures")


def kept(data: str, store: PictureStore, *, is_result: bool) -> str | Picture:
    """A picture in base64, in the store; raises PictureFault.

    Args:
        data: the base64.
        store: the store.
        is_result: whether it is of a tool's result: a text then says why it is no picture, the tool's error and not the
            model's.
    """
    try:
        return store.keep(decoded(data))
    except PictureFault as fault:
        if is_result:
            return f"[image left out: {fault}]"
        raise
