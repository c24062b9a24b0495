"""Gives the logits behind an answer by reading it again with the reference engine of a repository."""

from collections.abc import Sequence
from pathlib import Path

from draftyard.doors.config_files import read_config
from draftyard.doors.endpoint import Endpoint
from draftyard.nouns.errors import Failure
from draftyard.nouns.prompt import Prompt
from draftyard.nouns.timeline import EntryCall, InputTensor
from draftyard.rules.lossless_verdict import LogitsOf
from draftyard.verbs.lossless import LogitsSource

ENGINE_PLACE = Path("engines") / "tensorrt_llm"
PREPROCESSING = "preprocessing"


class EngineReplay(LogitsSource):
    """Logits from the engine that the repository holds; none where that is another lane's.

    The engine is loaded a second time, in this process, and only when answers part.
    """

    def __init__(self, repository: Path) -> None:
        self._engine = repository / ENGINE_PLACE

    async def of(self, endpoint: Endpoint, prompts: Sequence[Prompt]) -> LogitsOf:
        """Asks the server's own preprocessing for the ids of these prompts, then replays what is wanted of them."""
        if not prompts or not self._has_engine():
            return await LogitsSource.of(self, endpoint, prompts)
        ids = {prompt.id: await endpoint.prompt_ids(_preprocessing(prompt)) for prompt in prompts}
        from draftyard.doors.tensors import open_tensor_file
        from draftyard.engine.loading import load_engine
        from draftyard.nouns.generation import GenerationRequest

        engine = load_engine(self._engine, open_tensor_file)

        def logits_of(prompt_id: str, shared: tuple[int, ...]) -> Sequence[float] | None:
            if prompt_id not in ids:
                return None
            request = GenerationRequest("replay", ids[prompt_id], len(shared) + 1, max_draft_len=0)
            found: list[float] = engine.replay(request, [*shared, 0])[len(shared)].tolist()
            return found

        return logits_of

    def _has_engine(self) -> bool:
        """Only an engine of the reference lane can be replayed; its configuration says which it is."""
        try:
            config = read_config(self._engine / "config.json")
        except Failure:
            return False
        own = config.get("draftyard")
        return isinstance(own, dict) and own.get("lane") == "reference"


def _preprocessing(prompt: Prompt) -> EntryCall:
    tensors = (
        InputTensor("QUERY", "BYTES", (prompt.chat_json(),)),
        InputTensor("REQUEST_OUTPUT_LEN", "INT32", (1,)),
    )
    return EntryCall(PREPROCESSING, tensors, (("chat", True),))
