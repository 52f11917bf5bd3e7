// What outlives a reload: the key, the settings, the conversation. `sessionStorage` is this tab's alone and ends with it,
// so that a key isn't left on a shared machine; where a browser forbids it, memory serves until the reload.

const storage = available();

/** What was kept under `name`; `fallback` where there is nothing. */
export function kept(name, fallback) {
  const text = storage.getItem(`forgelm.${name}`);
  return text === null ? fallback : JSON.parse(text);
}

/** Keep a value that JSON can hold. */
export function keep(name, value) {
  try {
    storage.setItem(`forgelm.${name}`, JSON.stringify(value));
  } catch {
    // It is full. An older value must not come back after the reload.
    storage.removeItem(`forgelm.${name}`);
  }
}

function available() {
  try {
    sessionStorage.setItem("forgelm.probe", "");
    sessionStorage.removeItem("forgelm.probe");
    return sessionStorage;
  } catch {
    const map = new Map();
    return {
      getItem: (name) => map.get(name) ?? null,
      setItem: (name, text) => map.set(name, text),
      removeItem: (name) => map.delete(name),
    };
  }
}
