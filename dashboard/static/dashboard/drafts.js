// Keeps what was typed into a long form in this tab: a session that ended or another pattern loses nothing.
(() => {
  const keyOf = (what) => "draft:new-" + (what || "task");
  const here = new URL(location.href);
  if (here.searchParams.has("created")) {
    sessionStorage.removeItem(keyOf(here.searchParams.get("created")));
    here.searchParams.delete("created");
    history.replaceState(null, "", here);
  }
  const form = document.querySelector("form[data-draft]");
  if (!form) return;
  const KEY = keyOf(form.dataset.draftOf);
  if (form.dataset.draft === "fresh") sessionStorage.removeItem(KEY); // what the server put there was asked for

  const fields = () => [...form.elements].filter((e) => e.name && e.type !== "hidden" && e.type !== "submit");
  const isBox = (e) => e.type === "checkbox";
  const untouched = (e) => isBox(e) ? e.checked === e.defaultChecked
    : e.options ? [...e.options].every((o) => o.selected === o.defaultSelected || (o.selected && !e.querySelector("[selected]") && o.index === 0))
    : e.value === e.defaultValue;

  const draft = JSON.parse(sessionStorage.getItem(KEY) || "{}");
  fields().filter((e) => e.name in draft && untouched(e)).forEach((e) => {
    if (isBox(e)) e.checked = draft[e.name];
    else if (!e.options || [...e.options].some((o) => o.value === draft[e.name])) e.value = draft[e.name];
  });
  form.addEventListener("input", () => {
    fields().forEach((e) => {
      if (form.dataset.draft !== "sent" && untouched(e)) delete draft[e.name];
      else draft[e.name] = isBox(e) ? e.checked : e.value;
    });
    sessionStorage.setItem(KEY, JSON.stringify(draft));
  });
})();
