// Requests to the server, always relative to the page, so that it works below any path of a proxy's.

import { keep, kept } from "./store.js";

/** An answer that isn't one: OpenAI's error envelope, or what a proxy said instead. */
export class ApiError extends Error {
  constructor(status, error, wait = null) {
    super(error.message || `the server answered with status ${status}`);
    this.status = status;
    this.code = error.code ?? "";
    /** Seconds after which to try again, as text; null where the server doesn't say. */
    this.wait = wait;
  }
}

/** Nobody answered, or not to the end. */
export class Unreachable extends Error {
  constructor(message = "the server can't be reached") {
    super(message);
  }
}

/** Tells of "unauthorized" (a key is missing or wrong), "key" (there is a new one) and "look" (the status has changed). */
export const bus = new EventTarget();

let key = kept("key", "");

export function setKey(value) {
  key = value;
  keep("key", value);
  bus.dispatchEvent(new Event("key"));
}

export function hasKey() {
  return key !== "";
}

/** The response to a request that the server took. Raises `ApiError`, `Unreachable`, or `AbortError`. */
export async function request(path, { method = "GET", body, signal, accept = "application/json" } = {}) {
  const headers = { accept };
  if (key) headers.authorization = `Bearer ${latin1(key)}`;
  if (body !== undefined) headers["content-type"] = "application/json";
  let response;
  try {
    response = await fetch(new URL(path, document.baseURI), {
      method, headers, signal, body: body === undefined ? undefined : JSON.stringify(body),
      cache: "no-store", credentials: "same-origin", redirect: "error",
    });
  } catch (error) {
    throw error.name === "AbortError" ? error : new Unreachable();
  }
  if (response.ok) return response;
  const failure = new ApiError(response.status, await problem(response), response.headers.get("retry-after"));
  if (failure.status === 401) bus.dispatchEvent(new Event("unauthorized"));
  throw failure;
}

/** The JSON that a request is answered with. */
export async function json(path, options) {
  const response = await request(path, options);
  try {
    return await response.json();
  } catch (error) {
    throw error.name === "AbortError" ? error : new Unreachable();
  }
}

/** POST with JSON both ways. */
export function post(path, body, options = {}) {
  return json(path, { method: "POST", body, ...options });
}

/** The server-sent events of a request, parsed, as they come. An `error` inside is raised as `ApiError`. */
export async function* events(path, options = {}) {
  const response = await request(path, { accept: "text/event-stream", ...options });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  try {
    let rest = "";
    for (;;) {
      const { done, value } = await read(reader);
      if (done) return;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const line of lines) {
        if (!line.startsWith("data: ") || line === "data: [DONE]") continue;
        const event = JSON.parse(line.slice(6));
        // A download that has failed tells so in a field of the same name, beside its state.
        if (event.error && event.state === undefined) throw new ApiError(response.status, event.error);
        yield event;
      }
    }
  } finally {
    // Whoever stops listening has the connection closed, which is how the server knows.
    reader.cancel().catch(() => undefined);
  }
}

async function read(reader) {
  try {
    return await reader.read();
  } catch (error) {
    throw error.name === "AbortError" ? error : new Unreachable();
  }
}

async function problem(response) {
  try {
    return (await response.json()).error ?? {};
  } catch {
    return {};
  }
}

/** UTF-8 bytes as the characters that `fetch` sends as those bytes: it refuses others in a header. */
function latin1(text) {
  return String.fromCharCode(...new TextEncoder().encode(text));
}
