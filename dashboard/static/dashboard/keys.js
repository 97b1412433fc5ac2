// The keyboard. No single key decides anything; single keys rest while somebody types, and can be switched off.
(() => {
  const OFF = "loopwarden-keys-off", CHORD = 1200;
  const off = () => localStorage.getItem(OFF) === "1";
  const typing = (e) => e.matches("input, textarea, select, [contenteditable]");
  const go = (name) => { const link = document.querySelector(`[data-key="${name}"]`); if (link) link.click(); return Boolean(link); };
  let before = "", at = 0;

  function rows(step) {
    const links = [...document.querySelectorAll("[data-row]")];
    const here = links.indexOf(document.activeElement);
    const next = links[here < 0 ? (step > 0 ? 0 : links.length - 1) : here + step];
    if (next) next.focus();
    return Boolean(next);
  }
  function help() {
    const box = document.getElementById("keys");
    if (!box || box.open) return false;
    box.querySelector("input").checked = !off();
    box.showModal();
    return true;
  }
  const single = {
    "/": () => { const box = document.querySelector("input[type=search]"); if (box) box.focus(); return Boolean(box); },
    "?": help, c: () => go("c"), n: () => go("n"), j: () => rows(1), k: () => rows(-1),
  };

  document.addEventListener("keydown", (event) => {
    const on = event.target;
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      const form = on.form || on.closest("form");
      const button = form && form.querySelector("[data-default]");
      if (button) { event.preventDefault(); form.requestSubmit(button); }
      return;
    }
    if (event.ctrlKey || event.metaKey || event.altKey || typing(on) || off() || document.querySelector("dialog[open]")) return;
    const chord = before === "g" && event.timeStamp - at < CHORD ? "g " + event.key : "";
    [before, at] = [event.key, event.timeStamp];
    const done = chord ? go(chord) : single[event.key]?.();
    if (done) event.preventDefault();
  });
  document.addEventListener("change", (event) => {
    if (event.target.id === "keys-on") localStorage.setItem(OFF, event.target.checked ? "0" : "1");
  });
  document.addEventListener("click", (event) => { if (event.target.closest("[data-open-keys]")) help(); });
  document.querySelector("[data-first-problem]")?.focus();
})();
