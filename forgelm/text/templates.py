"""Which chat template is used: the model's own, or another that was asked for."""

from pathlib import Path

from forgelm.errors import ConfigError

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""The format that most models which bring no template of their own were tuned on, if on any."""


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
