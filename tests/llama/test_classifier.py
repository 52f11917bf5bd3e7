"""What a file's classifier gives, told from its header."""

from pathlib import Path

import pytest

from forgelm.errors import ModelError
from forgelm.llama.classifier import refuse_ranking, score_of
from tests.embedders import Embedders

pytestmark = pytest.mark.model


def test_what_the_scores_are(embedders: Embedders) -> None:
    assert score_of(embedders.ranker) == "logit"
    assert score_of(embedders.qwen_ranker) == "probability"


def test_what_is_no_rerank_model(embedders: Embedders, starter_path: Path) -> None:
    for path in (embedders.bert, embedders.qwen, starter_path):
        with pytest.raises(ModelError, match="no classifier"):
            score_of(path)
    with pytest.raises(ModelError, match="3 numbers for 3 labels"):
        score_of(embedders.labelled)


def test_what_gives_no_vectors(embedders: Embedders, starter_path: Path) -> None:
    for path in (embedders.ranker, embedders.qwen_ranker):
        with pytest.raises(ModelError, match="is a rerank model"):
            refuse_ranking(path)
    for path in (embedders.bert, embedders.silent, embedders.qwen, starter_path):
        refuse_ranking(path)
