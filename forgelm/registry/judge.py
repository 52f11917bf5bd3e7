"""What a GGUF is, by its header: a model for chats, embeddings or ranking, and if it can't be served, why not."""

from collections import Counter

import msgspec

from forgelm.errors import ModelError
from forgelm.fit.published import QWEN35
from forgelm.gguf.file_types import quant_name
from forgelm.gguf.header import Header
from forgelm.ipc.registry import Kind
from forgelm.registry.architectures import COMPANIONS, EMBEDDING, KNOWN, UNSERVED
from forgelm.registry.headers import COUNT, elements
from forgelm.registry.names import quant_of

RANK = 4
"""llama.cpp's `llama_pooling_type` of models that rank texts."""
POOLING = (1, 2, 3)
"""Its others: the mean of all tokens, the first one's, the last one's."""
ROPE_SECTIONS = 4
"""Entries that llama.cpp wants of `rope.dimension_sections`, wherever it is."""
_INSIDE = ("v.", "mm.", "a.")
"""Beginnings of the names of tensors that read pictures and sound."""
_LONGEST = 200
"""Letters of a name."""
_MOST = 2**63 - 1
"""What a database holds."""
_LONGEST_CONTEXT = 2**31 - 1
"""Tokens that llama.cpp counts."""
_CHATML = 'ChatML can be asked for in a profile: [chat] template = "chatml"'
NO_TEMPLATE = f"no chat template: it can be used with /v1/completions. {_CHATML}"


class Judgement(msgspec.Struct, frozen=True):
    """What a header says about its file."""

    kind: Kind
    architecture: str
    name: str
    """What the file calls itself."""
    quant: str
    parameters: int
    context: int
    """What it was trained for, in tokens; 0 where it doesn't say."""
    template: bool
    """It brings a chat template that can be rendered."""
    mtp: bool
    """Its next-token head is in the file."""
    pooling: int
    """llama.cpp's number of how tokens' vectors become one; −1 where it doesn't say."""
    problem: str = ""
    """Why it can't be served, in one line; "" when it can."""
    note: str = ""
    companion: bool = False
    """It goes with a model and is none."""


def judge(header: Header, name: str = "") -> Judgement:
    """Judge a model by its header, `merge`d where it has several parts; `name` is its file's, where there is one."""
    companion = _companion_problem(header)
    problem = companion or _architecture_problem(header) or _layout_problem(header)
    kind = _kind(header)
    source = header.values.get("tokenizer.chat_template")
    note = "" if problem or kind != "chat" else _template_note(source if isinstance(source, str) else "")
    return Judgement(
        kind=kind,
        architecture=header.architecture[:_LONGEST],
        name=_text(header, "general.name")[:_LONGEST],
        quant=_quant(header) or quant_of(name) or _commonest_type(header),
        parameters=min(_MOST, elements(header)),
        context=_number(header, "context_length"),
        template=bool(source) and not note and kind == "chat" and not problem,
        mtp=not companion and any(".nextn." in tensor.name for tensor in header.tensors),
        pooling=_number(header, "pooling_type", -1),
        problem=problem,
        note=note,
        companion=bool(companion),
    )


def _companion_problem(header: Header) -> str:
    """Why a file isn't a model but goes with one; "" when it is one."""
    sort = _text(header, "general.type").lower()
    if sort == "imatrix" or "imatrix.chunk_count" in header.values:
        return "it is an importance matrix, as is used for quantizing, and no model"
    if sort == "adapter" or "adapter.type" in header.values:
        return "it is a LoRA adapter, and models are served without any: merge it into its model"
    if sort == "mmproj":
        return COMPANIONS["clip"]
    if _is_head_alone(header):
        return "it is the next-token head of a model, and no model: put it beside that"
    return COMPANIONS.get(header.architecture, "")


def _is_head_alone(header: Header) -> bool:
    """Whether it has next-token layers and no others. A first part of several may have no layers at all."""
    names = [tensor.name for tensor in header.tensors]
    return (
        _number(header, "nextn_predict_layers") > 0
        and any(".nextn." in name for name in names)
        and not any(name.startswith("blk.0.") for name in names)
        and header.values.get(COUNT, 0) in (0, 1)
    )


def _architecture_problem(header: Header) -> str:
    architecture = header.architecture
    if not architecture:
        return "it doesn't say which architecture it has, so llama.cpp can't load it"
    if architecture not in KNOWN:
        return f"its architecture {architecture[:60]!r} isn't known to the llama.cpp that is built in"
    return UNSERVED.get(architecture, "")


def _layout_problem(header: Header) -> str:
    """What llama.cpp wouldn't find where it looks for it."""
    if not header.tensors and header.values.get(COUNT, 0) in (0, 1):
        return "it has no weights: a vocabulary alone"
    name = f"{header.architecture}.context_length"
    if name in header.values and not 0 < _number(header, "context_length") <= _LONGEST_CONTEXT:
        return f"its {name} is {str(header.values[name])[:60]}, which is no number of tokens that it can work with"
    name = f"{header.architecture}.rope.dimension_sections"
    sections = header.lengths.get(name, ROPE_SECTIONS)
    if sections != ROPE_SECTIONS:
        return (
            f"its {name} has {sections} entries and llama.cpp wants {ROPE_SECTIONS}: Ollama's files and early "
            f"conversions are so. Use {_other_source(header)}"
        )
    if any(tensor.name.startswith(_INSIDE) for tensor in header.tensors):
        return (
            "what reads pictures or sound is in the same file, as Ollama has it, and llama.cpp wants it in one of its "
            f"own. Use {_other_source(header)}"
        )
    return ""


def _other_source(header: Header) -> str:
    """Where a conversion that can be loaded is to be had."""
    layers = _number(header, "block_count") - _number(header, "nextn_predict_layers")
    sizes = layers, _number(header, "embedding_length")
    for size, model in QWEN35.items():
        if header.architecture == "qwen35" and sizes == (model.layers, model.hidden):
            return f"unsloth/Qwen3.5-{size}-MTP-GGUF"
    return "a conversion from the hub, such as one of unsloth's"


def _kind(header: Header) -> Kind:
    pooling = _number(header, "pooling_type", -1)
    if pooling == RANK:
        return "rerank"
    return "embedding" if header.architecture in EMBEDDING or pooling in POOLING else "chat"


def _template_note(source: str) -> str:
    if not source:
        return NO_TEMPLATE
    # With it comes Jinja, for which whoever lists models that were judged before has no use.
    from forgelm.text.template import ChatTemplate

    try:
        ChatTemplate(source)
    except ModelError as error:
        return f"{error}: it can be used with /v1/completions. {_CHATML}"
    return ""


def _quant(header: Header) -> str:
    kind = header.values.get("general.file_type")
    return quant_name(kind) if isinstance(kind, int) else ""


def _commonest_type(header: Header) -> str:
    """The type of most of the bytes."""
    sizes = Counter[str]()
    for tensor in header.tensors:
        sizes[tensor.type] += tensor.bytes
    return sizes.most_common(1)[0][0].upper() if sizes else ""


def _text(header: Header, key: str) -> str:
    value = header.values.get(key)
    return value if isinstance(value, str) else ""


def _number(header: Header, key: str, default: int = 0) -> int:
    """The integer at `{architecture}.{key}` within what a database holds; `default` where there is none."""
    try:
        return max(-1, min(_MOST, header.number(key, default)))
    except ModelError:
        return default
