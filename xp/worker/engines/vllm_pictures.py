"""The pictures of conversations as vLLM takes them, whose own processor makes their placeholders and pixels again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from xp.episode.picture_reader import GRID
from xp.episode.sized_pictures import SizedPictures
from xp.errors import ExitCode, XpError
from xp.worker.engines.completions import MODEL, CompletionClient, sampling_parameters
from xp.worker.engines.conversation import GeneratedTurn, GenerationRequest


class VLLMPictures:
    """The pictures of conversations for vLLM.

    Args:
        sized: the pictures, with those that have been encoded.
        version: name of the engine's weights. vLLM keeps what its vision part makes of a picture by the picture's name.

    Raises:
        XpError: (PLAN) the placeholders of a picture are not one run, or its processor has no grid of patches.
    """

    def __init__(self, sized: SizedPictures, version: str = "") -> None:
        if GRID not in sized.reader.form.dims:
            raise XpError(
                f"model.images: xp gives vLLM no pictures of {type(sized.reader.processor).__name__}; set"
                " backend.engine.name=transformers",
                ExitCode.PLAN,
            )
        self.sized = sized
        self._version = version

    def short_ids(self, request: GenerationRequest) -> list[int]:
        """The ids of a request with one placeholder for each picture, which vLLM repeats; raises PictureMismatch."""
        return self.sized.short_ids(request.ids, request.pictures)

    def prompt(self, request: GenerationRequest) -> dict[str, Any]:
        """The prompt of a request for an engine of this process; raises PictureMismatch."""
        if not request.pictures:
            return {"type": "token", "prompt_token_ids": list(request.ids)}
        return {
            "prompt_token_ids": self.short_ids(request),
            "multi_modal_data": {
                "image": [self.sized.image(digest) for digest in request.pictures]
            },
            "multi_modal_uuids": {"image": [self.name(digest) for digest in request.pictures]},
        }

    def name(self, digest: str) -> str:
        """Name of a picture in vLLM's caches."""
        return f"{digest}{self._version}"


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
                    "url": self._pictures.sized.uri(digest),
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
