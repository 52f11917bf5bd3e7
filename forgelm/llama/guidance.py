"""llguidance beside llama.cpp: its tokenizer made from a loaded vocabulary, and the limits grammars are compiled under.

Knows nothing of requests, schemas or sequences.
"""

import ctypes
from typing import Any

from llguidance import LLParserLimits, LLTokenizer

from forgelm.llama.lib import L
from forgelm.llama.vocab import Vocabulary, piece_of

_MARK = b"\xff"
"""llguidance's sign of a special token: no text contains that byte, so no text in a grammar matches one."""

_TOKENIZE = ctypes.CFUNCTYPE(
    ctypes.c_int32,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_int32,
    ctypes.POINTER(ctypes.c_int32),
    ctypes.c_int32,
    ctypes.c_bool,
    ctypes.c_bool,
)
"""The signature of `llama_tokenize`."""


def parser_limits() -> LLParserLimits:
    """The bounds under which both processes compile: what passes in one passes in the other.

    llguidance counts about 50,000 units of initial fuel a millisecond, 14,000 of step fuel and 20,000 items; a state
    takes up to 2 kB. A mask is thus bounded by some 70 ms, which takes five patterns that must all match.
    """
    return LLParserLimits(
        max_items_in_row=20_000,
        initial_lexer_fuel=1_000_000,
        step_lexer_fuel=1_000_000,
        step_max_items=50_000,
        max_lexer_states=50_000,
        max_grammar_size=200_000,
        precompute_large_lexemes=False,
        verbose_errors=False,
    )


class Guidance:
    """A vocabulary as llguidance sees it. The vocabulary must stay loaded as long as this is used.

    Control, unknown and user-defined tokens are special: only a grammar that names one lets it through, so that text
    never turns into a mark that a parser of ours would take for the model's own. User-defined white space is text: it
    marks nothing, and models that have such tokens write their line breaks with them.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        """Takes most of a second at 248k entries, much of it with the interpreter locked: not for the step thread."""
        self.ends = vocabulary.end_tokens()
        self.size = vocabulary.size
        self._names: dict[int, bytes] = {}
        """Special tokens, id → name."""
        self._bytes: dict[int, int] = {}
        """Byte → the token that is this byte alone."""
        # Same package: the handle is of no use to anyone else.
        handle = vocabulary._vocab
        tokens = self._read(handle)
        self._callback = _TOKENIZE(self._tokenize)
        self.tokenizer: LLTokenizer = LLTokenizer.from_llamacpp(  # type: ignore[attr-defined]
            tokens=tokens,
            vocab_ptr=handle,
            tokenize_fptr=ctypes.cast(self._callback, ctypes.c_void_p).value,
            eos_token=list(self.ends),
        )

    def _read(self, handle: Any) -> list[bytes]:
        """Every token's bytes, in order of ids, special ones marked."""
        special = L.LLAMA_TOKEN_ATTR_CONTROL | L.LLAMA_TOKEN_ATTR_UNKNOWN
        defined = L.LLAMA_TOKEN_ATTR_USER_DEFINED
        ends, tokens = frozenset(self.ends), []
        for token in range(self.size):
            piece = piece_of(handle, token, special=True)
            attributes = L.llama_vocab_get_attr(handle, token)
            if attributes & special or token in ends or (attributes & defined and not piece.isspace()):
                self._names[token] = piece
                piece = _MARK + piece
            elif len(piece) == 1:
                self._bytes[piece[0]] = token
            tokens.append(piece)
        return tokens

    def _tokenize(self, vocab: Any, text: int, size: int, out: Any, room: int, *flags: bool) -> int:
        """`llama_tokenize`, but names of special tokens are spelled out: it finds user-defined ones in any text.

        llguidance calls this for text that must follow, and lets nothing but these tokens through.
        """
        buffer = (ctypes.c_int32 * (size + 4))()
        data = ctypes.cast(text, ctypes.c_char_p)
        count = L.llama_tokenize(vocab, data, size, buffer, len(buffer), *flags)
        tokens = list(buffer[: max(count, 0)])
        _, parse_special = flags
        if not parse_special and not self._names.keys().isdisjoint(tokens):
            tokens = [part for token in tokens for part in self._spelled(token)]
        if len(tokens) > room:
            return -len(tokens)
        ctypes.memmove(out, (ctypes.c_int32 * len(tokens))(*tokens), 4 * len(tokens))
        return len(tokens)

    def _spelled(self, token: int) -> list[int]:
        """`token`, or the bytes of its name if it is special."""
        name = self._names.get(token)
        return [token] if name is None else [self._bytes[byte] for byte in name if byte in self._bytes]
