"""A model's vocabulary: text to token ids and back. The API process opens it alone, without weights or a GPU.

Knows nothing of templates or of which text may hold special tokens; callers say so.
"""

import ctypes
import re
from array import array
from collections.abc import Container, Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from forgelm.errors import ModelError
from forgelm.llama.lib import L, c_string, load_handle

_PIECE_BYTES = 128
_WHOLE = 65_536
"""Characters up to which a text is tokenized in one go: at worst a seventh of a second."""
_PART = 4096
"""Characters between cuts of a longer text."""


class Pieces(dict[int, bytes]):
    """Token id → the bytes it stands for, filled on first use. Control tokens are empty."""

    def __init__(self, handle: Any) -> None:
        super().__init__()
        self._handle = handle

    def __missing__(self, token: int) -> bytes:
        piece = self[token] = piece_of(self._handle, token, special=False)
        return piece


def piece_of(vocab: Any, token: int, *, special: bool) -> bytes:
    """The bytes of one token; `special` shows control tokens as their names."""
    buffer = ctypes.create_string_buffer(_PIECE_BYTES)
    size = L.llama_token_to_piece(vocab, token, buffer, _PIECE_BYTES, 0, special)
    if size < 0:
        buffer = ctypes.create_string_buffer(-size)
        size = L.llama_token_to_piece(vocab, token, buffer, -size, 0, special)
    return buffer.raw[:size]


class Vocabulary:
    """Tokenizes and names tokens. Owns the handle when made by `open`; close it then."""

    def __init__(self, model: Any, *, owned: bool = False) -> None:
        self._model = model
        self._owned = owned
        self._vocab = L.llama_model_get_vocab(model)
        self.size: int = L.llama_vocab_n_tokens(self._vocab)
        self.pieces = Pieces(self._vocab)
        self.bos: int = L.llama_vocab_bos(self._vocab)
        self.eos: int = L.llama_vocab_eos(self._vocab)

    @classmethod
    def open(cls, path: Path) -> "Vocabulary":
        """Load only the vocabulary of `path`. Raises `ModelError`."""
        params = L.llama_model_default_params()
        params.vocab_only = True
        # An empty device list: otherwise a CUDA build queries every GPU and leaves a context on each.
        no_devices = (ctypes.c_void_p * 1)(None)
        params.devices = ctypes.cast(no_devices, ctypes.c_void_p)
        vocabulary = cls(load_handle(path, params), owned=True)
        # A file may count tokens without naming them; asked to tokenize, llama.cpp would abort the process.
        if L.llama_vocab_type(vocabulary._vocab) == L.LLAMA_VOCAB_TYPE_NONE:
            vocabulary.close()
            raise ModelError(f"{path} holds no vocabulary")
        return vocabulary

    def close(self) -> None:
        """Free the handle if it is ours."""
        if self._owned and self._model:
            L.llama_model_free(self._model)
            self._model = None

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool, inside: bool = False) -> "array[int]":
        """Token ids of `text` (int32).

        `add_special` adds what the model wants at the start (BOS); `parse_special` reads control tokens written out
        in the text; `inside`: it goes on from other text, where some vocabularies would put a space between. llama.cpp
        releases the interpreter lock meanwhile.
        """
        if inside and self._spaces:
            return self._continue(text, parse_special)
        if len(text) <= _WHOLE or not parse_special or self.adds_end:
            return self._tokenize(text, add_special, parse_special)
        tokens = array("i")
        for index, part in enumerate(self._parts(text)):
            tokens += self._tokenize(part, add_special and index == 0, parse_special=True)
        return tokens

    @cached_property
    def _spaces(self) -> bool:
        """Whether a space is put before every text."""
        return self.pieces_of(self._tokenize("x", False, False)).startswith(b" ")

    def _continue(self, text: str, parse_special: bool) -> "array[int]":
        """`text` without a space before it: tokenized after a letter that nothing of it merges with."""
        for letter in "\n|x0":
            # A space is put after special tokens, too.
            if self.special(letter) is None:
                before = self._tokenize(letter, False, False)
                tokens = self.tokenize(letter + text, add_special=False, parse_special=parse_special)
                if tokens[: len(before)] == before:
                    return tokens[len(before) :]
        return self.tokenize(text, add_special=False, parse_special=parse_special)

    def showing(self, texts: Iterable[str]) -> Pieces:
        """The bytes of each token, those control tokens among `texts` by their names."""
        pieces = Pieces(self._vocab)
        named = {self.special(text): text.encode() for text in texts}
        pieces.update({token: name for token, name in named.items() if token is not None})
        return pieces

    def pieces_of(self, tokens: Iterable[int]) -> bytes:
        """What `tokens` stand for, joined."""
        return b"".join([self.pieces[token] for token in tokens])

    def spell(self, text: str, avoid: Container[int | None]) -> "array[int]":
        """Token ids of `text` without any of `avoid`, whatever it is the name of. Raises `ModelError` if there are
        none.

        `parse_special=False` isn't enough: llama.cpp matches tokens of the kind USER_DEFINED even so.
        """
        tokens = self.tokenize(text, add_special=False, parse_special=False, inside=True)
        if not any(token in avoid for token in tokens) and self.pieces_of(tokens) == text.encode():
            return tokens
        if len(text) < 2:
            raise ModelError(f"the vocabulary can't spell {text!r}")
        half = len(text) // 2
        return self.spell(text[:half], avoid) + self.spell(text[half:], avoid)

    def _parts(self, text: str) -> Iterator[str]:
        """`text` cut before special tokens, about every `_PART` characters.

        llama.cpp walks a list of all fragments found so far for each special token it meets: 40,000 of them in one text
        took 7 s, and nothing can stop it. Text is tokenized apart on both sides of a special token anyway.
        """
        start = 0
        while start + _PART < len(text):
            # The first match may lie inside a longer special token that the search began in; the next can't.
            first = self._special.search(text, start + _PART)
            cut = self._special.search(text, first.end()) if first else None
            if cut is None:
                break
            yield text[start : cut.start()]
            start = cut.start()
        yield text[start:]

    @cached_property
    def _special(self) -> "re.Pattern[str]":
        """Matches special tokens that leave the text before them alone, longest first; nothing if there are none."""
        names = [name for name, attributes in self._specials.items() if not attributes & L.LLAMA_TOKEN_ATTR_LSTRIP]
        longest_first = sorted(map(re.escape, names), key=len, reverse=True)
        return re.compile("|".join(longest_first) or r"(?!)")

    @cached_property
    def _specials(self) -> dict[str, int]:
        """Name → attributes of the tokens that are looked for before text is tokenized."""
        attributes_of, vocab = L.llama_vocab_get_attr, self._vocab
        return {name: attributes_of(vocab, token) for name, token in self._special_ids.items()}

    @cached_property
    def _special_ids(self) -> dict[str, int]:
        """Name → id of the same tokens."""
        special = L.LLAMA_TOKEN_ATTR_CONTROL | L.LLAMA_TOKEN_ATTR_USER_DEFINED | L.LLAMA_TOKEN_ATTR_UNKNOWN
        attributes_of, vocab = L.llama_vocab_get_attr, self._vocab
        named = {self.text_of(token): token for token in range(self.size) if attributes_of(vocab, token) & special}
        return {name: token for name, token in named.items() if name}

    def separators(self, text: str) -> dict[str, int]:
        """Control tokens written out in `text`, name → id, at which every text may be cut: right before each.

        A name that another special token's name contains is none, since a text's cut would depend on what follows.
        """
        tokens = set(self.tokenize(text, add_special=False, parse_special=True))
        specials = self._specials
        named = {self.text_of(token): token for token in tokens}
        control, lstrip = L.LLAMA_TOKEN_ATTR_CONTROL, L.LLAMA_TOKEN_ATTR_LSTRIP
        kinds = {name: specials.get(name, 0) & (control | lstrip) for name in named}
        return {
            name: token
            for name, token in named.items()
            if kinds[name] == control and sum(name in other for other in specials) == 1
        }

    def special(self, text: str) -> int | None:
        """The id if `text` is exactly one token that is looked for before text is tokenized."""
        return self._special_ids.get(text)

    def reserved(self) -> dict[str, bool]:
        """Names of the tokens that are looked for before text is tokenized → whether that can't be switched off.

        False: control tokens and the unknown one. True: those of the kind USER_DEFINED, which may be anything from
        `<think>` to a row of spaces.
        """
        hidden = L.LLAMA_TOKEN_ATTR_CONTROL | L.LLAMA_TOKEN_ATTR_UNKNOWN
        return {name: not attributes & hidden for name, attributes in self._specials.items()}

    @cached_property
    def fim(self) -> tuple[int, int, int] | None:
        """Tokens for filling in the middle: what is put before the prefix, the suffix and the middle."""
        vocab = self._vocab
        tokens = L.llama_vocab_fim_pre(vocab), L.llama_vocab_fim_suf(vocab), L.llama_vocab_fim_mid(vocab)
        return tokens if min(tokens) >= 0 else None

    @cached_property
    def adds_end(self) -> bool:
        """Whether tokenizing with `add_special` puts an end token after the text (embedding models)."""
        return bool(L.llama_vocab_get_add_eos(self._vocab))

    @cached_property
    def adds_begin(self) -> bool:
        """Whether it puts BOS before the text."""
        return bool(L.llama_vocab_get_add_bos(self._vocab))

    @cached_property
    def separator(self) -> int:
        """What is put between two texts that are read together, and after the last one by BERT's tokenizer; −1 for
        models that know no such thing."""
        vocab = self._vocab
        return int(L.llama_vocab_sep(vocab)) if L.llama_vocab_get_add_sep(vocab) else -1

    def _tokenize(self, text: str, add_special: bool, parse_special: bool) -> "array[int]":
        data = text.encode()
        room = len(data) + 4
        buffer = (ctypes.c_int32 * room)()
        count = L.llama_tokenize(self._vocab, data, len(data), buffer, room, add_special, parse_special)
        if count < 0:
            raise ModelError("the tokenizer asked for more room than one token per byte")
        tokens = array("i")
        tokens.frombytes(memoryview(buffer).cast("B")[: count * 4])
        return tokens

    def text_of(self, token: int) -> str:
        """The token as text, control tokens by name (`<|im_end|>`); "" for −1."""
        return piece_of(self._vocab, token, special=True).decode("utf-8", "replace") if token >= 0 else ""

    def end_tokens(self) -> tuple[int, ...]:
        """Every id that ends an answer (EOS, end of turn, …), ascending."""
        return tuple(t for t in range(self.size) if L.llama_vocab_is_eog(self._vocab, t))

    def chat_template(self) -> str | None:
        """The Jinja source stored in the file, if any."""
        template = L.llama_model_chat_template(self._model, None)
        return template.decode() if template else None

    def metadata(self, key: str) -> str:
        """A metadata value of the file as text; "" when absent."""
        return c_string(L.llama_model_meta_val_str, self._model, key.encode())
