"""The pictures of conversations as vLLM takes them, whose own processor makes their placeholders and pixels again.

The processors of PIL and of torchvision differ where they resize. So vLLM gets each picture in the size to which xp's
processor resizes it, and leaves that size as it is; the pixels then differ by rounding alone.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from xp.episode.picture_reader import GRID, MAX_KEPT, PictureReader
from xp.errors import ExitCode, XpError
from xp.worker.engines.completions import MODEL, CompletionClient, sampling_parameters
from xp.worker.engines.conversation import GeneratedTurn, GenerationRequest


class VLLMPictures:
    """The pictures of conversations for vLLM.

    Args:
        reader: the pictures as xp's ids and the update have them.
        version: name of the engine's weights. vLLM keeps what its vision part makes of a picture by the picture's name.

    Raises:
        XpError: (PLAN) the placeholders of a picture are not one run, or its processor has no grid of patches.
    """

    def __init__(self, reader: PictureReader, version: str = "") -> None:
        if GRID not in reader.form.dims:
            raise XpError(
                f"model.images: xp gives vLLM no pictures of {type(reader.processor).__name__}; set"
                " backend.engine.name=transformers",
                ExitCode.PLAN,
            )
        self._reader = reader
        self._version = version
        self.image = lru_cache(MAX_KEPT)(self._resized)
        """Function from a picture's digest to PIL's image."""
        self.png = lru_cache(MAX_KEPT)(self._png)
        """Function from a picture's digest to its PNG, in base64."""

    def short_ids(self, request: GenerationRequest) -> list[int]:
        """The ids of a request with one placeholder for each picture, which vLLM repeats.

        Raises:
            XpError: (STAGE_FAILED) they have other placeholders than the pictures have tokens.
        """
        fault = self._reader.fault(request.ids, request.pictures)
        if fault is not None:
            raise XpError(fault, ExitCode.STAGE_FAILED)
        ids: list[int] = []
        start = 0
        for digest in request.pictures:
            place = request.ids.index(self._reader.placeholder_id, start)
            ids += request.ids[start : place + 1]
            start = place + self._reader.num_tokens(digest)
        return [*ids, *request.ids[start:]]

    def prompt(self, request: GenerationRequest) -> dict[str, Any]:
        """The prompt of a request for an engine of this process; raises XpError as `short_ids` does."""
        if not request.pictures:
            return {"type": "token", "prompt_token_ids": list(request.ids)}
        return {
            "prompt_token_ids": self.short_ids(request),
            "multi_modal_data": {"image": [self.image(digest) for digest in request.pictures]},
            "multi_modal_uuids": {"image": [self.name(digest) for digest in request.pictures]},
        }

    def name(self, digest: str) -> str:
        """Name of a picture in vLLM's caches."""
        return f"{digest}{self._version}"

    def _resized(self, digest: str) -> Any:
        processor = self._reader.processor.image_processor
        _, height, width = self._reader.pixels([digest])[GRID][0].tolist()
        size = (width * processor.patch_size, height * processor.patch_size)
        return self._reader.image(digest).resize(size, processor.resample)

    def _png(self, digest: str) -> str:
        written = io.BytesIO()
        self.image(digest).save(written, "PNG")
        return base64.b64encode(written.getvalue()).decode()


def check_prompt(request: GenerationRequest, engine_ids: Sequence[int] | None) -> None:
    """Checks that vLLM generated after the ids of the request.

    Args:
        request: the turn.
        engine_ids: the prompt's ids, as vLLM returns them.

    Raises:
        XpError: (STAGE_FAILED) they differ.
    """
    if engine_ids is None or list(engine_ids) != list(request.ids):
        number = "none" if engine_ids is None else str(len(engine_ids))
        raise XpError(
            f"the tokens of pictures differ: vLLM's prompt has {number} tokens, and xp's has {len(request.ids)}; vLLM's"
            " processor of pictures must be that of the model's directory, and vLLM's version 0.30 or later",
            ExitCode.STAGE_FAILED,
        )


class PictureClient(CompletionClient):
    """A client of `/inference/v1/generate` (vLLM 0.30, `--enable-scale-out`), for conversations with pictures.

    Args:
        pictures: of the conversations.
        arguments, keywords: see CompletionClient.
    """

    path = "/inference/v1/generate"

    def __init__(self, *arguments: Any, pictures: VLLMPictures, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self._pictures = pictures

    def _body(self, request: GenerationRequest) -> dict[str, Any]:
        parameters = sampling_parameters(self.sampling, request, self._never)
        return {
            "model": MODEL,
            "token_ids": self._pictures.short_ids(request),
            "content_parts": [
                {
                    "type": "image_url",
                    "url": f"data:image/png;base64,{self._pictures.png(digest)}",
                    "uuid": self._pictures.name(digest),
                }
                for digest in request.pictures
            ],
            "sampling_params": {**parameters, "stop_token_ids": self.end_ids},
            "return_token_ids": True,
        }

    def _post(self, request: GenerationRequest) -> Any:
        answer = super()._post(request)
        check_prompt(request, answer.get("prompt_token_ids"))
        return answer

    def _turn(self, answer: Any) -> GeneratedTurn:
        choice = answer["choices"][0]
        logprobs = [token["logprob"] for token in choice["logprobs"]["content"]]
        return GeneratedTurn(choice["token_ids"], logprobs)
