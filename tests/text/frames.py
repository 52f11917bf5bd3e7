# ruff: noqa: E501  The templates are as their authors wrote them.
"""Chat templates of other models, cut down to how they frame messages, and vocabularies that have just their marks.

The marks are written as the originals write them, text and white space as well; greetings and dates are left out.
"""

import re
from array import array
from collections.abc import Container
from dataclasses import dataclass

LLAMA3 = r"""
{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\n\n" }}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- if not tools is none %}
    {%- if messages | length != 0 %}
        {%- set first_user_message = messages[0]['content']|trim %}
        {%- set messages = messages[1:] %}
    {%- else %}
        {{- raise_exception("Cannot put tools in the first user message when there's no first user message!") }}
    {%- endif %}
    {{- '<|start_header_id|>user<|end_header_id|>\n\n' -}}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\n\n" }}
    {%- endfor %}
    {{- first_user_message + "<|eot_id|>"}}
{%- endif %}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("This model only supports single tool-calls at once!") }}
        {%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' -}}
        {{- '{"name": "' + tool_call.name + '", "parameters": ' }}
        {{- tool_call.arguments | tojson }}
        {{- "}<|eot_id|>" }}
    {%- elif message.role == "tool" or message.role == "ipython" %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\n\n" }}
        {{- message.content | tojson }}
        {{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}
"""

MISTRAL = r"""
{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{%- set ns = namespace() %}
{%- set ns.index = 0 %}
{%- for message in loop_messages %}
    {%- if not (message.role == "tool" or (message.tool_calls is defined and message.tool_calls is not none)) %}
        {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
            {{- raise_exception("After the optional system message, conversation roles must alternate") }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and (message == user_messages[-1]) %}
            {{- "[AVAILABLE_TOOLS][" }}
            {%- for tool in tools %}
                {%- set tool = tool.function %}
                {{- '{"type": "function", "function": {' }}
                {%- for key, val in tool.items() if key != "return" %}
                    {%- if val is string %}
                        {{- '"' + key + '": "' + val + '"' }}
                    {%- else %}
                        {{- '"' + key + '": ' + val|tojson }}
                    {%- endif %}
                    {%- if not loop.last %}
                        {{- ", " }}
                    {%- endif %}
                {%- endfor %}
                {{- "}}" }}
                {%- if not loop.last %}{{- ", " }}{%- else %}{{- "]" }}{%- endif %}
            {%- endfor %}
            {{- "[/AVAILABLE_TOOLS]" }}
        {%- endif %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST]" + system_message + "\n\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST]" + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif (message.tool_calls is defined and message.tool_calls is not none) %}
        {{- "[TOOL_CALLS][" }}
        {%- for tool_call in message.tool_calls %}
            {%- set out = tool_call.function|tojson %}
            {{- out[:-1] }}
            {%- if not tool_call.id is defined or tool_call.id|length != 9 %}
                {{- raise_exception("Tool call IDs should be alphanumeric strings with length 9!") }}
            {%- endif %}
            {{- ', "id": "' + tool_call.id + '"}' }}
            {%- if not loop.last %}{{- ", " }}{%- else %}{{- "]" + eos_token }}{%- endif %}
        {%- endfor %}
    {%- elif message["role"] == "assistant" %}
        {{- message["content"] + eos_token}}
    {%- elif message["role"] == "tool" %}
        {{- '[TOOL_RESULTS]{"content": ' + message.content|string + ", " }}
        {%- if not message.tool_call_id is defined or message.tool_call_id|length != 9 %}
            {{- raise_exception("Tool call IDs should be alphanumeric strings with length 9!") }}
        {%- endif %}
        {{- '"call_id": "' + message.tool_call_id + '"}[/TOOL_RESULTS]' }}
    {%- else %}
        {{- raise_exception("Only user and assistant roles are supported") }}
    {%- endif %}
{%- endfor %}
"""

HERMES = r"""
{{- bos_token }}
{{- '<|im_start|>system\n<tools> ' }}
{%- for tool in tools %}
    {%- if tool.function is defined %}
        {%- set tool = tool.function %}
    {%- endif %}
    {{- '{"type": "function", "function": {"name": "' + tool.name + '", "description": "' + tool.name + '(' }}
    {%- for param_name, param_fields in tool.parameters.properties|items %}
        {{- param_name + ": " + param_fields.type }}
        {%- if not loop.last %}
            {{- ", " }}
        {%- endif %}
    {%- endfor %}
    {{- ") - " + tool.description + '", "parameters": ' + tool.parameters|tojson + '}}' }}
{%- endfor %}
{{- ' </tools><|im_end|>\n' }}
{%- for message in messages %}
    {%- if message.role == "user" or message.role == "system" or (message.role == "assistant" and message.tool_calls is not defined) %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role }}
        {%- for tool_call in message.tool_calls %}
            {%- set tool_call = tool_call.function %}
            {{- '\n<tool_call>\n{"name": "' + tool_call.name + '", "arguments": ' + tool_call.arguments|tojson + '}\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.previtem and loop.previtem.role != "tool" %}
            {{- '<|im_start|>tool\n' }}
        {%- endif %}
        {{- '<tool_response>\n' }}
        {{- message.content }}
        {{- '\n</tool_response>' }}
        {%- if not loop.last and loop.nextitem.role != "tool" %}
            {{- '<|im_end|>' }}
        {%- elif loop.last %}
            {{- '<|im_end|>' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}
"""

R1 = r"""
{{- bos_token }}
{%- for message in messages -%}
  {%- if message['role'] == 'user' or message['role'] == 'system' -%}
    {{'<｜User｜>' + message['content']}}
  {%- endif -%}
  {%- if message['role'] == 'assistant' and message['content'] is none -%}
    {{'<｜Assistant｜><｜tool▁calls▁begin｜>'}}
    {%- for tool in message['tool_calls']-%}
      {{'<｜tool▁call▁begin｜>' + tool['type'] + '<｜tool▁sep｜>' + tool['function']['name'] + '\n```json\n' + tool['function']['arguments'] + '\n```<｜tool▁call▁end｜>'}}
    {%- endfor -%}
    {{'<｜tool▁calls▁end｜><｜end▁of▁sentence｜>'}}
  {%- endif -%}
  {%- if message['role'] == 'assistant' and message['content'] is not none -%}
    {%- set content = message['content'] -%}
    {%- if '</think>' in content -%}
      {%- set content = content.split('</think>')[-1] -%}
    {%- endif -%}
    {{'<｜Assistant｜>' + content + '<｜end▁of▁sentence｜>'}}
  {%- endif -%}
  {%- if message['role'] == 'tool' -%}
    {{'<｜tool▁output▁begin｜>' + message['content'] + '<｜tool▁output▁end｜>'}}
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{'<｜Assistant｜><think>\n'}}{%- endif %}
"""

MISTRAL_MARKS = """
<s> </s> [INST] [/INST] [TOOL_CALLS] [AVAILABLE_TOOLS] [/AVAILABLE_TOOLS] [TOOL_RESULTS] [/TOOL_RESULTS]
"""
R1_MARKS = """
<｜User｜> <｜Assistant｜> <think> </think> <｜tool▁calls▁begin｜> <｜tool▁calls▁end｜> <｜tool▁call▁begin｜>
<｜tool▁call▁end｜> <｜tool▁sep｜> <｜tool▁output▁begin｜> <｜tool▁output▁end｜>
"""

MARKS = {
    "llama3": (LLAMA3, "<|begin_of_text|> <|start_header_id|> <|end_header_id|> <|eot_id|>", ""),
    "mistral": (MISTRAL, MISTRAL_MARKS, ""),
    "hermes": (
        HERMES,
        "<|im_start|> <|im_end|>",
        "<tool_call> </tool_call> <tool_response> </tool_response> <tools> </tools>",
    ),
    "r1": (R1, "<｜begin▁of▁sentence｜> <｜end▁of▁sentence｜>", R1_MARKS),
}
"""Name → template, its control tokens, and those of the kind USER_DEFINED."""


@dataclass
class ToyVocabulary:
    """Special tokens, and one token for each letter. As in llama.cpp user-defined ones are matched in every text."""

    control: list[str]
    user_defined: list[str]

    @classmethod
    def of(cls, name: str) -> "ToyVocabulary":
        """The one for a template of `MARKS`."""
        _, control, user_defined = MARKS[name]
        return cls(control.split(), user_defined.split())

    def reserved(self) -> dict[str, bool]:
        return {**dict.fromkeys(self.control, False), **dict.fromkeys(self.user_defined, True)}

    def special(self, text: str) -> int | None:
        names = [*self.control, *self.user_defined]
        return names.index(text) if text in names else None

    def text_of(self, token: int) -> str:
        names = [*self.control, *self.user_defined]
        return names[token] if token < len(names) else chr(token - 1000)

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool, inside: bool = False) -> "array[int]":
        names = [*self.user_defined, *(self.control if parse_special else [])]
        longest_first = sorted(map(re.escape, names), key=len, reverse=True)
        pieces = re.findall("|".join([*longest_first, "."]), text, re.DOTALL)
        return array("i", [self._token(piece) for piece in pieces])

    def _token(self, piece: str) -> int:
        found = self.special(piece)
        return 1000 + ord(piece) if found is None else found

    def spell(self, text: str, avoid: Container[int | None]) -> "array[int]":
        tokens = array("i", [self._token(letter) for letter in text])
        assert not any(token in avoid for token in tokens)
        return tokens
