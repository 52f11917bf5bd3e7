"""Which chat template is used: the model's own, or another that was asked for."""

from pathlib import Path

from forgelm.errors import ConfigError
from forgelm.text.template import CHATML


def chosen_template(asked: str, own: str | None) -> str | None:
    """The source of the template: `own` unless another was asked for, "chatml" or a file.

    Raises `ConfigError` when that file can't be read.
    """
    if not asked:
        return own
    if asked == "chatml":
        return CHATML
    try:
        return Path(asked).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise ConfigError(f"the chat template {asked} can't be read: {reason}") from None
