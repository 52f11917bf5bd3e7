"""The API process: HTTP in OpenAI's shapes, text in and out, and the engine's requests. It loads no weights."""
