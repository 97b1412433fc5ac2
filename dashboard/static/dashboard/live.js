// Notify, then fetch: the socket says which topics changed, htmx fetches what shows them.
(() => {
  const THROTTLE = 200, GRACE = 5000, POLL = 5000, LONGEST = 15000, LOGGED_OUT = 4403;
  let socket = null, tries = 0, retry = 0, poll = 0, grace = 0, over = false;
  const last = new Map(), due = new Map();

  const topics = () => [...new Set([...document.querySelectorAll("[data-live]")].flatMap((e) => e.dataset.live.split(" ")))];
  const feed = (state) => { document.documentElement.dataset.feed = state; };
  const note = (text) => { const box = document.getElementById("live"); if (box) { box.textContent = text; box.hidden = !text; } };

  function fire(topic) {
    if (due.has(topic)) return;
    const wait = Math.max(0, (last.get(topic) ?? -THROTTLE) + THROTTLE - performance.now());
    due.set(topic, setTimeout(() => {
      due.delete(topic);
      last.set(topic, performance.now());
      document.body.dispatchEvent(new CustomEvent("live:" + topic));
    }, wait));
  }
  const fireAll = () => topics().forEach(fire);

  function lost() {
    feed("off");
    if (over || grace || poll) return;
    grace = setTimeout(() => {
      grace = 0;
      note("Live updates paused, retrying");
      fireAll();
      poll = setInterval(fireAll, POLL);
    }, GRACE);
  }
  function found() {
    clearTimeout(grace); clearInterval(poll);
    grace = poll = 0;
    feed("on");
    note("");
    fireAll(); // whatever changed meanwhile was not announced to us
  }
  function rest() {
    clearTimeout(retry); clearTimeout(grace); clearInterval(poll);
    grace = poll = 0;
    const old = socket;
    socket = null;
    if (old) old.close();
  }

  function open() {
    if (socket || over || document.hidden || !topics().length) return;
    lost();
    const mine = socket = new WebSocket(location.origin.replace(/^http/, "ws") + "/ws/live/");
    mine.onopen = () => { tries = 0; mine.send(JSON.stringify({ subscribe: topics() })); };
    mine.onmessage = (message) => {
      const said = JSON.parse(message.data);
      if (said.topics) said.topics.forEach(fire);
      else if (said.live) found();
      else lost();
    };
    mine.onclose = (event) => {
      if (socket !== mine) return;
      socket = null;
      if (event.code === LOGGED_OUT) { rest(); over = true; note("You are logged out. Reload the page to log in."); return; }
      lost();
      retry = setTimeout(open, Math.min(LONGEST, 500 * 2 ** tries++) * (0.5 + Math.random() / 2));
    };
  }

  // A morph must not take away what a person is in the middle of.
  const typed = (e) => (e.matches?.("textarea, input:not([type=hidden], [type=checkbox], [type=radio])") ? e.value !== e.defaultValue : false);
  const holdsTyped = (e) => e.nodeType === 1 && (typed(e) || [...e.querySelectorAll("textarea, input")].some(typed));
  if (window.Idiomorph) {
    Idiomorph.defaults.ignoreActiveValue = true;
    Object.assign(Idiomorph.defaults.callbacks, {
      beforeAttributeUpdated: (name, e) => !(name === "open" && e.tagName === "DETAILS"),
      beforeNodeMorphed: (old) => !(old.nodeType === 1 && typed(old)),
      beforeNodeRemoved: (old) => !holdsTyped(old),
    });
  }
  document.addEventListener("visibilitychange", () => (document.hidden ? rest() : open()));
  addEventListener("pagehide", rest);
  addEventListener("pageshow", open);
})();
