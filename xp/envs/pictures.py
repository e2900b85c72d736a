"""Pictures of messages: their bytes lie once, in a store by digest, which messages, records and digests have."""

from __future__ import annotations

import atexit
import base64
import binascii
import hashlib
import io
import itertools
import os
import re
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

from xp.envs.base import PICTURE_MARK, Message, Picture, ProtocolError
from xp.errors import ExitCode, XpError
from xp.lib.atomic import replacing, sync_directory
from xp.lib.digest import digest_of
from xp.spec.model import Images

VARIABLE: Final = "XP_PICTURES"
"""Environment variable with the directory of the store, for the processes of environments."""
DIRECTORY: Final = "pictures"
"""Directory of the store in the outputs."""
FORMATS: Final = {
    "PNG": "image/png",
    "JPEG": "image/jpeg",
    "WEBP": "image/webp",
    "GIF": "image/gif",
    "BMP": "image/bmp",
}
"""Formats that are decoded, by PIL's name; of a moving picture the first frame."""
MAX_BYTES: Final = 50_000_000
MAX_PIXELS: Final = 50_000_000
"""Largest picture that is decoded: a small file may claim to be a huge one."""
THUMBNAIL_PIXELS: Final = 128 * 128
REPLACEMENT: Final = "\ufffd"
REMOTE: Final = ("http://", "https://", "ftp://", "s3://", "gs://", "file:")
OFF: Final = "set model.images, for example model.images=true, if the model reads pictures"


class PictureFault(ProtocolError):
    """A picture that is refused: no picture, too large, outside of its folder, or an address."""


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
    def of(environ: Mapping[str, str]) -> PictureStore:
        """The store of a stage's processes, or one that ends with this process where there is none."""
        directory = environ.get(VARIABLE)
        return PictureStore(None if directory is None else Path(directory))

    @staticmethod
    def of_stage() -> PictureStore:
        """The store of the stage that this process belongs to, whose working directory is the outputs root."""
        return PictureStore(Path(os.environ.get(VARIABLE) or Path(DIRECTORY).absolute()))

    def keep(self, data: bytes) -> Picture:
        """Stores the bytes of a picture; raises PictureFault if they are none, or a too large one."""
        image, media_type = _opened(data)
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

        image, _ = _opened(self.data(digest))
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


def base64_png(image: Any) -> str:
    """The PNG of PIL's image, in base64."""
    return base64.b64encode(picture_data(image)).decode()


def png_uri(text: str) -> str:
    """The data URI of a PNG in base64."""
    return f"data:image/png;base64,{text}"


def store_of(images: Images | None, environ: Mapping[str, str]) -> PictureStore | None:
    """The store for an environment's pictures. None means that they are refused.

    Args:
        images: limits of pictures. None means that they are off.
        environ: variables with the place of the store.
    """
    if images is None:
        return None
    return PictureStore.of(environ)


@cache
def _temporary() -> Path:
    directory = Path(tempfile.mkdtemp(prefix="xp-pictures-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return directory


def _opened(data: bytes) -> tuple[Any, str]:
    """PIL's image of the bytes, decoded and turned as its camera says, and its media type; raises PictureFault."""
    from PIL import Image, ImageOps, UnidentifiedImageError

    if len(data) > MAX_BYTES:
        raise PictureFault(f"an image of {len(data):,} bytes; at most {MAX_BYTES:,} are read")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            image: Any = Image.open(io.BytesIO(data), formats=tuple(FORMATS))
        if image.width * image.height > MAX_PIXELS:
            raise Image.DecompressionBombError
        # PIL calls the JPEG of a camera with several pictures MPO.
        media_type = FORMATS.get(str(image.format), "image/jpeg")
        image = ImageOps.exif_transpose(image)
    except UnidentifiedImageError:
        kinds = ", ".join(FORMATS)
        raise PictureFault(
            f"not an image: {len(data):,} bytes beginning with {data[:8]!r}; supported: {kinds}"
        ) from None
    except Image.DecompressionBombError:
        raise PictureFault(
            f"an image with more than {MAX_PIXELS:,} pixels, which is not decoded"
        ) from None
    except Exception as error:  # PIL's decoders raise many classes for damaged files
        raise PictureFault(f"a damaged image ({type(error).__name__}: {error!s:.80})") from None
    return image, media_type


def named(value: Any) -> Picture:
    """A picture that is not read: it has the digest of how it is written, to check and to compare prompts cheaply."""
    return Picture(sha256=digest_of(value), media_type="image/unread", width=1, height=1, size=1)


def picture_data(value: Any, folders: Sequence[Path] = ()) -> bytes:
    """The bytes of a picture as people write it; raises PictureFault.

    Args:
        value: bytes, a data URI, a path beside the data's file, {bytes, path} of `datasets`, PIL's image, or a part of a
            message of OpenAI's, Anthropic's or MCP's APIs.
        folders: folders of the data's files, in one of which a path must lie. Empty means that a path is refused.
    """
    if isinstance(value, bytes | bytearray):
        return bytes(value)
    if isinstance(value, str):
        return _data_in_text(value, folders)
    if isinstance(value, Mapping) and _value_in(value) is not None:
        return picture_data(_value_in(value), folders)
    if hasattr(value, "save") and hasattr(value, "mode"):
        written = io.BytesIO()
        image = value if value.mode in PNG_MODES else value.convert("RGB")
        image.save(written, "PNG")
        return written.getvalue()
    raise PictureFault(f"expected an image (bytes, a path or a data URI), got {value!r:.60}")


def _data_in_text(text: str, folders: Sequence[Path]) -> bytes:
    if text[:5].lower() == "data:":
        head, _, data = text.partition(",")
        if not head.lower().endswith(";base64"):
            raise PictureFault(f"a data URI without base64: {head:.60}")
        return decoded(data)
    if text.lower().startswith(REMOTE):
        raise PictureFault(
            f"{text:.60} is a URL; xp downloads no images: give the bytes, a data URI or a file beside the data"
        )
    if not folders:
        raise PictureFault(
            f"a path ({text:.60}), but the rows come from no file, so there is no folder that it lies in"
        )
    try:
        return _data_in_file(text, folders)
    except (OSError, ValueError, RuntimeError) as error:
        raise PictureFault(f"a path that cannot be read: {text[:80]!r} ({error!s:.80})") from None


def path_of(value: Any) -> str | None:
    """The path that `picture_data` reads for a picture. None means that it reads no file."""
    if isinstance(value, Mapping):
        return path_of(_value_in(value))
    if not isinstance(value, str) or value.lower().startswith(("data:", *REMOTE)):
        return None
    return value


def files_named(text: str, folders: Sequence[Path]) -> list[Path]:
    """The files of this path below the folders; raises PictureFault if there is none, OSError and ValueError for a path
    that no file can have."""
    is_inside = False
    files: list[Path] = []
    for folder in folders:
        home = folder.resolve()
        file = (home / text).resolve()
        if file.is_relative_to(home):
            is_inside = True
            if file.is_file():
                files.append(file)
    if not is_inside:
        raise PictureFault(f"a path outside the folder of the rows: {text:.80}")
    if not files:
        raise PictureFault(f"no file {text:.80} in {', '.join(map(str, folders))}")
    return files


def _data_in_file(text: str, folders: Sequence[Path]) -> bytes:
    """The bytes of a file below one of the folders."""
    files = files_named(text, folders)
    for file in files:
        if file.stat().st_size > MAX_BYTES:
            raise PictureFault(f"{file} has more than {MAX_BYTES:,} bytes")
    contents = {file.read_bytes() for file in files}
    if len(contents) > 1:
        places = " and ".join(str(file) for file in files)
        raise PictureFault(
            f"two different files have this path ({places}); give the images other names"
        )
    return contents.pop()


def _value_in(part: Mapping[Any, Any]) -> Any:
    """The value of a picture in a part of a message, or in a value of `datasets`. None means that there is none."""
    for key in PICTURE_KEYS[:-2]:
        if part.get(key) is not None:
            return part[key]
    if isinstance(part.get("data"), str):
        return f"data:;base64,{part['data']}"
    return part.get("path")


def decoded(text: str) -> bytes:
    """The bytes of base64; raises PictureFault."""
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except (ValueError, binascii.Error):
        raise PictureFault("an image that is not base64") from None


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


PNG_MODES: Final = ("1", "L", "LA", "I", "I;16", "P", "RGB", "RGBA")
"""PIL's modes that a PNG has."""


PICTURE_PARTS: Final = ("image", "image_url", "input_image")
"""Types of the parts of a message that are pictures."""


PICTURE_KEYS: Final = ("bytes", "image", "image_url", "url", "source", "data", "path")
"""Keys of a picture's value in a part of a message, or in a value of `datasets`."""


def is_picture_part(part: Any) -> bool:
    return isinstance(part, Mapping) and part.get("type") in PICTURE_PARTS


def joined(parts: Iterable[str | Picture], *, between: str = "") -> tuple[str, list[Picture]]:
    """The content of a message with these texts and pictures, and its pictures.

    A text of a message with pictures cannot have a mark of its own.

    Args:
        parts: in their order.
        between: text between two texts that follow each other.
    """
    parts = list(parts)
    has_pictures = any(not isinstance(part, str) for part in parts)
    content = ""
    pictures: list[Picture] = []
    is_after_text = False
    for part in parts:
        if isinstance(part, str):
            text = part.replace(PICTURE_MARK, REPLACEMENT) if has_pictures else part
            content += (between if is_after_text else "") + text
        else:
            content += PICTURE_MARK
            pictures.append(part)
        is_after_text = isinstance(part, str)
    return content, pictures


def parts_of(message: Mapping[str, Any]) -> list[str | Picture]:
    """The texts, without empty ones, and the pictures of a message: the reverse of `joined`."""
    pictures = list(message.get("pictures", ()))
    if not pictures:
        return [message["content"]]
    texts = message["content"].split(PICTURE_MARK)
    parts: list[str | Picture] = []
    for number, text in enumerate(texts):
        if text:
            parts.append(text)
        if number < len(pictures):
            parts.append(pictures[number])
    return parts


def with_pictures(message: Message, parts: Iterable[str | Picture]) -> Message:
    """A message with these parts as its content."""
    content, pictures = joined(parts)
    changed = Message({**message, "content": content})
    changed.pop("pictures", None)
    if pictures:
        changed["pictures"] = pictures
    return changed


def separated(groups: Iterable[Iterable[str | Picture]], between: str) -> Iterator[str | Picture]:
    """The parts of all groups, with a text between two groups."""
    for number, group in enumerate(groups):
        if number:
            yield between
        yield from group


def with_each_picture(message: Message, change: Callable[[Picture], str | Picture]) -> Message:
    """A message with a text or another picture in place of each picture."""
    parts = parts_of(message)
    return with_pictures(
        message, [part if isinstance(part, str) else change(part) for part in parts]
    )


def with_each_text(message: Message, split: Callable[[str], Iterable[str | Picture]]) -> Message:
    """A message with texts and pictures in place of each text."""
    parts: list[str | Picture] = []
    for part in parts_of(message):
        if isinstance(part, str):
            parts += split(part)
        else:
            parts.append(part)
    return with_pictures(message, parts)


def pictures_of(messages: Iterable[Mapping[str, Any]]) -> list[Picture]:
    """All pictures of the messages, in their order."""
    return [picture for message in messages for picture in message.get("pictures", ())]


def own_pictures(message: Mapping[str, Any]) -> list[Picture]:
    """The pictures of a message in xp's own form; raises ProtocolError for another form."""
    pictures = message["pictures"]
    is_list = isinstance(pictures, list | tuple)
    if not is_list or not all(is_picture(picture) for picture in pictures):
        raise ProtocolError(
            f"expected images as parts of the content, got pictures={pictures!r:.60}"
        )
    if message["content"].count(PICTURE_MARK) != len(pictures):
        raise ProtocolError("a message has another number of pictures than of their marks")
    return list(pictures)


def is_picture(value: Any) -> bool:
    """Returns whether a value is a picture in xp's own form."""
    return (
        isinstance(value, Mapping)
        and value.keys() == Picture.__annotations__.keys()
        and re.fullmatch("[0-9a-f]{64}", str(value["sha256"])) is not None
    )


def digests_of(messages: Iterable[Mapping[str, Any]]) -> list[str]:
    """sha256 of the pictures of the messages, in their order, as their placeholders stand in the tokens."""
    return [picture["sha256"] for picture in pictures_of(messages)]


def described(picture: Picture) -> str:
    """A picture in words, for terminals and texts: `[image 64x64 png 1a2b3c4d]`."""
    kind = picture["media_type"].removeprefix("image/")
    return f"[image {picture['width']}x{picture['height']} {kind} {picture['sha256'][:8]}]"


def text_of(message: Mapping[str, Any]) -> str:
    """The content with its pictures in words."""
    return "".join(part if isinstance(part, str) else described(part) for part in parts_of(message))


def without(message: Message, reason: str, *, but: int = 0) -> Message:
    """A message with a text in place of its pictures after the first ones.

    Args:
        message: the message.
        reason: why they are left out.
        but: number of first pictures that stay.
    """
    numbers = itertools.count()

    def kept_or_text(picture: Picture) -> str | Picture:
        if next(numbers) < but:
            return picture
        return f"[image left out: {reason}]"

    return with_each_picture(message, kept_or_text)


def checked(messages: Sequence[Message], *, is_on: bool) -> Sequence[Message]:
    """Returns the messages of an environment; raises ProtocolError for a picture if they are off, or not one for each
    mark."""
    for message in messages:
        if not message.get("pictures"):
            continue
        pictures = own_pictures(message)
        if not is_on:
            kind = pictures[0]["media_type"]
            raise ProtocolError(f"an image ({kind}): xp gives a model text alone; {OFF}")
    return messages
