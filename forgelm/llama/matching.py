"""Whether two models speak of the same tokens, so that one can guess for the other."""

from forgelm.llama.lib import L
from forgelm.llama.model import Model


def vocabulary_difference(model: Model, draft: Model) -> str:
    """What tells `draft`'s vocabulary from `model`'s, in a few words; "" if every id is the same text in both.

    Ids are all that the two exchange. So every text must be the same, the first five and the padding at the end too,
    where llama-server's check looks away: a guess that one model has no row for would be refused by the decode. Which
    tokens are special, begin or end a text doesn't matter here: it decides how text is tokenized and when an answer
    ends, both the model's affair alone, and conversions of one vocabulary often differ in it.
    """
    ours, theirs = L.llama_model_get_vocab(model.handle), L.llama_model_get_vocab(draft.handle)
    if L.llama_vocab_type(ours) != L.llama_vocab_type(theirs):
        return "it has another kind of vocabulary"
    sizes = L.llama_vocab_n_tokens(ours), L.llama_vocab_n_tokens(theirs)
    if sizes[0] != sizes[1]:
        return f"it has {sizes[1]} tokens, not {sizes[0]}"
    text = L.llama_vocab_get_text
    for token in range(sizes[0]):
        if text(ours, token) != text(theirs, token):
            names = (repr(text(vocab, token).decode("utf-8", "replace")) for vocab in (theirs, ours))
            return f"its token {token} is {' and not '.join(names)}"
    return ""
