"""What a server understands, learned from a few short requests before it is measured, which also warm it up.

Fields that it refuses are left out from then on, and words are converted to tokens by its own count.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import httpx
import msgspec

from forgelm.bench.client import Client, Endpoint, Sent, reach
from forgelm.bench.streams import Answer, Failed
from forgelm.bench.texts import TOKENS_PER_WORD, Texts
from forgelm.errors import ForgeError

CHAT = "/chat/completions"
OPTIONAL: dict[str, Any] = {
    "stream_options": {"include_usage": True},
    "ignore_eos": True,
    "max_tokens": None,
    "temperature": 0,
}
"""Fields that servers may refuse, in the order in which they are suspected where the error names none."""
RENAMED = {"max_tokens": "max_completion_tokens"}
SHORT, LONG = 16, 144
"""Words of the two texts by which tokens are counted."""
TRIES = 3
"""A server that is loading, or full, gets some time."""
PATIENCE = 2.0
LISTING_SECONDS = 30.0
"""For the list of models."""


class Listed(msgspec.Struct, frozen=True):
    """What is read of a model in `/v1/models`."""

    id: str
    owned_by: str = ""
    loaded: bool | None = None
    max_model_len: int | None = None
    meta: dict[str, Any] | None = None
    """llama-server's."""

    @property
    def context(self) -> int:
        """The most tokens of a request; 0 where it isn't said."""
        found = self.max_model_len or (self.meta or {}).get("n_ctx") or 0
        return found if isinstance(found, int) else 0


class _Models(msgspec.Struct, frozen=True):
    data: tuple[Listed, ...] = ()


@dataclass(frozen=True)
class Terms:
    """How a server is to be asked."""

    model: str
    owned_by: str = ""
    context: int = 0
    """The most tokens of a request; 0 where it isn't known."""
    refused: frozenset[str] = frozenset()
    tokens_per_word: float = TOKENS_PER_WORD
    overhead: float = 12.0
    """Tokens that the template adds to one message."""
    paired: float | None = None
    """Tokens that it adds to a system prompt and a message; None where that isn't known, or refused."""
    counts: bool = True
    """Whether it sends usage."""

    def body(
        self, fields: Mapping[str, Any], tokens: int, *, exact: bool = True, stream: bool = True
    ) -> dict[str, Any]:
        """A request for `tokens` tokens: exactly so many where `exact` and the server knows how, else at most."""
        asked = {**OPTIONAL, "max_tokens": tokens}
        if not exact:
            asked.pop("ignore_eos")
        if not stream:
            asked.pop("stream_options")
        kept = {RENAMED.get(name, name) if name in self.refused else name: value
                for name, value in asked.items() if name not in self.refused or name in RENAMED}  # fmt: skip
        return {"model": self.model, **kept, "stream": stream, **fields}

    @property
    def opens(self) -> bool:
        """Whether the template has a system prompt of its own, which one of ours takes the place of."""
        return self.paired is not None and self.paired < self.overhead

    def words(self, tokens: int) -> int:
        """How many words of our texts make about `tokens` tokens; at least one."""
        return max(1, round(tokens / self.tokens_per_word))

    def notes(self) -> tuple[str, ...]:
        """What this server's figures can't tell."""
        notes = []
        if not self.counts:
            notes.append("the server sends no usage: output tokens are counted by pieces, and prompts by words")
        if "ignore_eos" in self.refused:
            notes.append("the server doesn't know ignore_eos: answers have the lengths that the model gives them")
        return tuple(notes)


async def learn(endpoint: Endpoint) -> Terms:
    """Ask the server for its models and for three short answers.

    Raises `ForgeError` in one line when it can't be reached, or doesn't answer even the plainest request.
    """
    await reach(endpoint)
    listed = await _listed(endpoint)
    chosen = next((model for model in listed if model.id == endpoint.model), None) if endpoint.model else None
    if chosen is None and not endpoint.model:
        # A server that lists what it could load says which one it has.
        chosen = next((model for model in listed if model.loaded), next(iter(listed), None))
    if chosen is None and not endpoint.model:
        raise ForgeError(f"{endpoint.base} lists no models; name one with --model")
    terms = Terms(
        model=chosen.id if chosen else endpoint.model,
        owned_by=chosen.owned_by if chosen else "",
        context=chosen.context if chosen else 0,
    )
    client, texts = Client(endpoint), Texts(0)
    terms, short = await _negotiated(client, terms, texts.words(SHORT))
    return await _calibrated(client, terms, short, texts.words(LONG))


async def _listed(endpoint: Endpoint) -> tuple[Listed, ...]:
    """The server's models; none where it has no such list."""
    headers = {"Authorization": f"Bearer {endpoint.key}"} if endpoint.key else {}
    async with httpx.AsyncClient(headers=headers, trust_env=False, timeout=LISTING_SECONDS) as http:
        try:
            response = await http.get(f"{endpoint.base}/models")
        except httpx.TimeoutException:
            raise ForgeError(f"{endpoint.base} doesn't answer within {LISTING_SECONDS:.0f} s") from None
        except httpx.HTTPError as error:
            raise ForgeError(f"{endpoint.base} doesn't speak HTTP: {str(error) or 'it hung up'}") from None
    if response.status_code in (401, 403):
        raise ForgeError(f"{endpoint.base} wants another API key ({response.status_code}): set FORGELM_API_KEY")
    if response.status_code != httpx.codes.OK:
        return ()
    try:
        return msgspec.json.decode(response.content, type=_Models).data
    except msgspec.DecodeError:
        return ()


async def _negotiated(client: Client, terms: Terms, text: str) -> tuple[Terms, Answer]:
    """The terms on which it answers, and the answer."""
    tries = TRIES
    while True:
        try:
            return terms, (await _asked(client, terms, text)).answer()
        except Failed as failed:
            suspect = _suspect(failed, terms.refused)
            if suspect:
                terms = replace(terms, refused=terms.refused | {suspect})
            elif tries and failed.kind in ("429", "503"):
                tries -= 1
                await asyncio.sleep(PATIENCE)
            else:
                raise ForgeError(f"{client.endpoint.base} doesn't answer: {failed}") from None


async def _asked(client: Client, terms: Terms, text: str, system: str = "") -> Sent:
    messages = [{"role": "system", "content": system}] if system else []
    return await client.send(CHAT, terms.body({"messages": [*messages, {"role": "user", "content": text}]}, 4))


def _suspect(failed: Failed, refused: frozenset[str]) -> str:
    """The field that a refusal is most likely about; "" where it can't be about one."""
    if failed.kind not in ("400", "422"):
        return ""
    left = [name for name in OPTIONAL if name not in refused]
    return next((name for name in left if name in failed.reason), left[0] if left else "")


async def _calibrated(client: Client, terms: Terms, short: Answer, text: str) -> Terms:
    if not short.counted or not short.prompt_tokens:
        return replace(terms, counts=False)
    try:
        long = (await _asked(client, terms, text)).answer()
    except Failed as failed:
        raise ForgeError(f"{client.endpoint.base} doesn't answer {LONG} words: {failed}") from None
    per_word = ((long.prompt_tokens or 0) - short.prompt_tokens) / (LONG - SHORT)
    if per_word <= 0:
        return terms
    return replace(
        terms,
        tokens_per_word=per_word,
        overhead=max(0.0, short.prompt_tokens - SHORT * per_word),
        paired=await _paired(client, terms, per_word, text),
    )


async def _paired(client: Client, terms: Terms, per_word: float, text: str) -> float | None:
    """`Terms.paired`: of the same words as the short text had, half of them as a system prompt."""
    words = text.split()[:SHORT]
    try:
        both = (await _asked(client, terms, " ".join(words[SHORT // 2 :]), " ".join(words[: SHORT // 2]))).answer()
    except Failed:
        # Some templates have no place for one.
        return None
    return max(0.0, (both.prompt_tokens or 0) - SHORT * per_word)
