"""Every message that crosses between the API process and the engine process, as two tagged unions.

API → engine: `Generate`, `Abort`, `Drain`. Engine → API: `Loading`, `Ready`, `Working`, `Step`, `Fatal`.
Structs are arrays on the wire, so a new trailing field with a default stays readable by both sides. Token ids travel
as little-endian int32 bytes where there are many (prompts), as plain integers where there are few (deltas).
"""

from typing import Literal

import msgspec

FinishReason = Literal["stop", "length", "abort", "error", "refused"]
"""`error`: we failed; `refused`: what the request asks can't be done, as came out on the way."""


class Message(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Base of all: immutable, an array on the wire."""


# --- API → engine ------------------------------------------------------------------------------------------------


class Sampling(Message, frozen=True):
    """How one sequence draws its tokens. Values are validated by the API; the engine trusts them.

    Order: bias, penalties (repetition, frequency, presence, DRY), temperature, top-n-sigma, min-p, top-k, typical,
    top-p, XTC, draw: vLLM's where it has them, which the Qwen3.5 cards assume. Mirostat takes the place of all cuts.
    """

    temperature: float = 1.0
    """0 is greedy: the first of the highest logits."""
    top_k: int = 0
    """0 is off."""
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    """Subtracted from the logit of each token that this sequence has generated (prompt tokens don't count)."""
    seed: int = 0
    """Random numbers derive from (seed, choice, token index), so recomputing a sequence draws the same ones."""
    frequency_penalty: float = 0.0
    """Like presence, times how often the token was generated."""
    repetition_penalty: float = 1.0
    """Divides the positive and multiplies the negative logits of all tokens seen, in prompt and answer; 1 is off."""
    penalty_window: int = 0
    """llama.cpp's `repeat_last_n`: all three penalties count over the last so many tokens, prompt included, or over all
    (−1); 0 counts as said above."""
    typical_p: float = 1.0
    top_n_sigma: float = 0.0
    """Logits further below the highest than so many standard deviations are cut; 0 is off."""
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    dry_multiplier: float = 0.0
    """0 is off."""
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_window: int = -1
    """Tokens looked back at; −1 is all, 0 is off."""
    dry_breakers: bytes = b""
    """Ids of tokens that end a repetition, little-endian int32."""
    mirostat: Literal[0, 1, 2] = 0
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    logit_bias: tuple[tuple[int, float], ...] = ()
    """(token id, what is added to its logit)."""


class Constraint(Message, frozen=True):
    """A grammar the answer must follow, as text; the engine compiles it."""

    grammar: str
    """llguidance's Lark, or its JSON form of a grammar."""
    triggers: tuple[int, ...] = ()
    """The grammar begins with the first of these ids that is generated, and takes that as its first token; until then
    everything is allowed. Empty: it begins at once."""


class Budget(Message, frozen=True):
    """A bound on thinking: after `tokens`, at least 1, without one of `ends` comes `closing`, by force."""

    tokens: int
    ends: tuple[int, ...]
    """Ids that end the thinking by themselves."""
    closing: tuple[int, ...]
    begins: tuple[int, ...] = ()
    """An answer that doesn't begin with one of these isn't thinking; empty: the prompt has begun it."""


class Drafting(Message, frozen=True):
    """How a request's tokens are guessed ahead; what isn't said here is the engine's own way."""

    drafter: Literal["", "off", "ngram", "draft", "mtp"] = ""
    """The one to use; "": whichever pays."""
    depth: int = 0
    """The most tokens to guess at once; 0: as many as pay."""


class Generate(Message, tag="generate", frozen=True):
    """Compute `prompt` and generate up to `max_tokens`."""

    id: int
    prompt: bytes
    """Token ids, little-endian int32."""
    max_tokens: int
    sampling: Sampling = Sampling()
    stop_tokens: tuple[int, ...] = ()
    """Ids that end the answer with `stop`. The ending token is delivered, so that the API sees what was computed."""
    boundaries: tuple[int, ...] = ()
    """Prompt positions, ascending, up to which later requests may have the same tokens; hybrids leave a state there."""
    choices: int = 1
    """Answers wanted; each ends on its own."""
    logprobs: int = -1
    """How many alternatives to report per token; −1 is off."""
    constraint: Constraint | None = None
    min_tokens: int = 0
    """Until so many are generated no stop token is drawn."""
    budget: Budget | None = None
    drafting: Drafting = Drafting()
    name: str = ""
    """What logs call the request, in every process: its client's `X-Request-Id`."""


class Abort(Message, tag="abort", frozen=True):
    """Forget a request, or one choice of it. Harmless for what has ended or never was."""

    id: int
    choice: int = -1
    """−1 is all of them."""


class Drain(Message, tag="drain", frozen=True):
    """Finish what runs, then exit 0."""


class Spare(Message, tag="spare", frozen=True):
    """Leave so many cores to others from now on; 0 takes all again.

    Threads that wait for each other many times a step are as slow as the one whose core somebody else has.
    """

    cores: int


ToEngine = Generate | Abort | Drain | Spare


# --- engine → API ------------------------------------------------------------------------------------------------


class Loading(Message, tag="loading", frozen=True):
    """Progress of the load."""

    fraction: float
    """0 … 1 of the weights."""


class ModelFacts(Message, frozen=True):
    """What only a loaded model can tell (a `vocab_only` load reports zero layers and context)."""

    architecture: str
    description: str
    parameters: int
    bytes: int
    layers: int
    vocabulary: int
    context_train: int
    context: int
    """The most tokens one request can hold: the pool, or less where the model was trained for less."""
    slots: int
    """Sequences that can run at once."""
    kv_type: str
    recurrent: bool
    """Some or all layers keep a recurrent state (hybrid models too)."""
    sliding_window: int
    devices: tuple[str, ...]
    threads: int
    llama_build: str
    load_seconds: float
    warmup_prefill_rate: float
    """Tokens per second of the warm-up's prefill chunk."""
    warmup_decode_seconds: float
    """Time of the warm-up's decode of one sequence."""
    cells: int
    """KV cells in the pool that all requests share."""
    cell_bytes: float = 0.0
    """What one token's keys and values take when saved."""
    state_bytes: int = 0
    """What one recurrent state takes when saved; 0 for models without."""
    drafters: tuple[str, ...] = ()
    """The ways in which tokens can be guessed ahead: "ngram", "draft", "mtp"."""
    draft_depth: int = 0
    """The most tokens of one sequence that can be guessed at once."""


class Ready(Message, tag="ready", frozen=True):
    """The engine takes requests."""

    facts: ModelFacts


class Working(Message, tag="working", frozen=True):
    """A step begins that is predicted to take `seconds`: silence until then is no hang."""

    seconds: float


class TokenLogprobs(Message, frozen=True):
    """One generated token's log-probability and the likeliest alternatives: log-softmax of the model's own logits,
    before any bias, penalty, temperature or grammar."""

    logprob: float
    top: tuple[tuple[int, float], ...]
    """(token id, log-probability), likeliest first."""


class Timings(Message, frozen=True):
    """Where a request's time went, in seconds, as the engine saw it. On the last delta only."""

    queue: float
    prefill: float
    """First scheduled to first token; recomputation after preemption included."""
    decode: float
    preemptions: int
    drafted: int = 0
    """Tokens guessed ahead and computed."""
    accepted: int = 0
    """Those of them that were right."""
    verifications: int = 0
    """Steps in which any were computed."""
    drafting: float = 0.0
    """Time spent on guessing for this request."""


class Delta(Message, frozen=True):
    """What one step added to one choice of one request."""

    id: int
    tokens: tuple[int, ...] = ()
    finish: FinishReason | None = None
    """Set exactly once per choice, on its last delta."""
    choice: int = 0
    logprobs: tuple[TokenLogprobs, ...] = ()
    """One per token of `tokens`, where asked for."""
    cached: int = 0
    """Prompt tokens taken from memory instead of computed; on every delta with tokens, and on the last."""
    timings: Timings | None = None
    error: str = ""
    """Why, when `finish` is `error` or `refused`."""


class Verification(Message, frozen=True):
    """What became of one sequence's guesses in a step."""

    drafter: str
    drafted: int
    accepted: int


class Stats(Message, frozen=True):
    """The engine's state after a step."""

    running: int
    waiting: int
    cells_used: int
    """KV cells held by running sequences."""
    seconds: float
    """Wall time of this step."""
    prefill_tokens: int
    decode_tokens: int
    preemptions: int
    """Since the engine started."""
    cells_cached: int = 0
    """KV cells held by finished requests alone: free for whoever needs them."""
    host_bytes: int = 0
    """RAM that saved prefixes and checkpoints take."""
    verifications: tuple[Verification, ...] = ()
    """One per sequence that had guesses computed in this step."""
    drafting: float = 0.0
    """Seconds spent on guessing in this step."""
    cells_highest: int = 0
    """The highest KV cell in use, plus one: what a decode has to visit."""
    decodes: int = 0
    """Calls of `llama_decode` in this step."""
    ubatches: int = 0
    """Physical batches that they were split into."""
    output_rows: int = 0
    """Rows of which logits were wanted."""
    host_seconds: float = 0.0
    """Part of `seconds` that this process itself took: drawing, grammars, verifying; not the model, and not copies."""


Tier = Literal["", "device", "host", "disk"]


class Admission(Message, frozen=True):
    """Where one sequence got its prefix from, when it began to run."""

    tokens: int
    """Of its prompt."""
    cached: int
    """Of these, taken from memory."""
    tier: Tier = ""
    """The slowest tier that any of them came from; "" where none did."""


class Step(Message, tag="step", frozen=True):
    """All that one step produced, for every sequence in it."""

    deltas: tuple[Delta, ...]
    stats: Stats
    started: tuple[int, ...] = ()
    """Requests that left the queue with this step."""
    admissions: tuple[Admission, ...] = ()
    """One per sequence that began to run for the first time."""


class Fatal(Message, tag="fatal", frozen=True):
    """The engine can't go on and exits. `loading` tells a model that can't be loaded from a crash while serving."""

    reason: str
    loading: bool


FromEngine = Loading | Ready | Working | Step | Fatal

decode_to_engine = msgspec.msgpack.Decoder(ToEngine).decode
decode_from_engine = msgspec.msgpack.Decoder(FromEngine).decode
