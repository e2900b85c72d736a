"""Bytes of pictures, as people write them: their forms, their limits, and PIL's image of them."""

from __future__ import annotations

import base64
import binascii
import io
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from xp.envs.base import ProtocolError

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
REMOTE: Final = ("http://", "https://", "ftp://", "s3://", "gs://", "file:")
PNG_MODES: Final = ("1", "L", "LA", "I", "I;16", "P", "RGB", "RGBA")
"""PIL's modes that a PNG has."""
VALUE_KEYS: Final = ("bytes", "image", "image_url", "url", "source")
"""Keys of a picture's value in a part of a message, or in a value of `datasets`."""
PICTURE_KEYS: Final = (*VALUE_KEYS, "data", "path")
"""These, and those of base64 and of a file."""


class PictureFault(ProtocolError):
    """A picture that is refused: no picture, too large, outside of its folder, or an address."""


def opened_image(data: bytes) -> tuple[Any, str]:
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
    for key in VALUE_KEYS:
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


def base64_png(image: Any) -> str:
    """The PNG of PIL's image, in base64."""
    return base64.b64encode(picture_data(image)).decode()


def png_uri(text: str) -> str:
    """The data URI of a PNG in base64."""
    return f"data:image/png;base64,{text}"
