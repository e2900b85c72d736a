"use strict";
// One episode, or several side by side: every message, tool call, result and reward.
(() => {
  const { h } = XP;
  const dialog = document.getElementById("dialog");
  let around = [];

  const bare = (run) => h("p", { class: "note" },
    "The text of this episode is not in this page. Write it with ",
    h("code", {}, `python -m xp report ${run.id} --episodes all`), ", or look at it with ",
    h("code", {}, `python -m xp view ${run.id}`), ".");

  const result = (found) => {
    if (!found) return h("span", { class: "badge bad" }, "not executed");
    return [
      found.reward !== null && h("span", { class: `badge ${found.reward > 0 ? "good" : found.reward < 0 ? "bad" : ""}` }, `reward ${XP.reward(found.reward)}`),
      found.is_call_error && h("span", { class: "badge bad" }, "call error"),
      found.finished && h("span", { class: "badge" }, "episode over"),
      found.text !== undefined && h("pre", { dir: "auto" }, found.text),
    ];
  };

  const call = (one) => h("div", { class: one.malformed ? "call malformed" : "call" },
    one.malformed ? [h("span", { class: "badge bad" }, "malformed call"), h("pre", { dir: "auto" }, one.malformed)]
      : one.answer ? [h("span", { class: "label" }, "answer"), result(one.result)]
        : [h("span", { class: "label" }, "tool call "), h("code", {}, one.name), h("pre", { dir: "auto" }, one.arguments), result(one.result)]);

  const message = (run, number, one, place, calls) => {
    const body = h("pre", { dir: "auto" }, one.content);
    const whole = async () => {
      const found = await XP.detail(run, number, true);
      body.textContent = found.messages[place].content;
    };
    const row = one.row === undefined ? "" : `, turn ${one.turn + 1}, row ${one.row + 1}${one.is_untrained ? ", not trained on" : ""}`;
    return h("article", { class: `message ${one.role}`, "data-turn": one.turn },
      h("header", {}, one.role + row), body,
      (one.pictures || []).map((src) => h("img", { src, alt: "picture" })),
      one.left_out && XP.isLive && h("button", { onclick: whole }, `show all ${XP.num(one.left_out)} characters more`),
      calls.map(call));
  };

  // The rows of tokens of a program that rewrote its history: below each row those that branch off from one of its turns.
  const tree = (found, parents = [-1]) => {
    const rows = found.rows.map((row, place) => ({ ...row, place })).filter((row) => parents.includes(row.follows));
    const turn = (at) => {
      const isLeft = found.messages.some((one) => one.turn === at && one.is_untrained);
      const jump = (event) => event.target.closest(".episode").querySelector(`[data-turn="${at}"]`).scrollIntoView();
      return [h("button", { onclick: jump, class: isLeft ? "token" : "token trained" }, String(at + 1)), " "];
    };
    return rows.length > 0 && h("ul", {}, rows.map((row) => h("li", {},
      `row ${row.place + 1}, ${row.follows < 0 ? (row.place ? "a new prompt" : "the first prompt") : `after turn ${row.follows + 1}`}: turns `,
      row.turns.map(turn), tree(found, row.turns))));
  };
  const treePart = (found) => found?.messages.some((one) => one.row !== undefined) && h("details", { open: true },
    h("summary", {}, `${found.rows.length} rows of tokens`),
    h("p", { class: "note" }, "A new prompt is a shortened history or a sub-agent. ", h("span", { class: "token trained" }, "trained on"), " ", h("span", { class: "token" }, "not trained on: the program did not wait for it")),
    tree(found));

  const body = (run, number, found) => found.messages.map((one, place) =>
    message(run, number, one, place, one.turn === undefined ? [] : found.calls.filter((own) => own.turn === one.turn)));

  const head = (row, found) => {
    const rewards = found?.step_rewards.map(XP.reward).join(", ");
    const steps = (found?.reward_steps || []).map(([step, reward]) => h("tr", {}, h("td", {}, step), h("td", { class: "number" }, XP.reward(reward))));
    const spent = found ? found.env_s.reduce((sum, value) => sum + (value || 0), 0) : null;
    const counted = found?.tokens?.generated !== undefined
      ? `${found.tokens.generated} tokens written (trained on), ${found.tokens.prompt} of the prompt and ${found.tokens.observed} of the environment (masked)` : null;
    const metrics = Object.entries(found?.metrics || {}).map(([name, value]) => `${name} ${XP.num(value)}`).join(", ");
    return [
      h("p", { class: "row-head" }, h("strong", {}, `reward ${XP.reward(row.reward)}`), " ", XP.badge(row.status, row.status),
        ` sample ${row.sample}, attempt ${row.attempt}, ${row.turns} turns, ${row.calls} calls, ${XP.time(row.seconds)}`,
        spent !== null && ` (environment ${XP.time(spent)})`),
      rewards && h("p", { class: "note" }, `rewards of the environment, call by call: ${rewards}`),
      steps.length > 0 && h("table", { class: "reward-steps" },
        h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "reward step"), h("th", { scope: "col", class: "number" }, "reward"))), h("tbody", {}, steps)),
      counted && h("p", { class: "note" }, counted),
      metrics && h("p", { class: "note" }, metrics),
      found?.void_reason && h("p", { class: "warn" }, `void: ${found.void_reason}`),
    ];
  };

  // Stretches of masked and of trained tokens follow each other; the first one is masked and may be empty.
  const tokenSpans = ({ ids, stretches, names }) => {
    let at = 0;
    return stretches.map((length, place) => ids.slice(at, at += length).map((id) =>
      h("span", { class: place % 2 ? "token trained" : "token", title: `token ${id}` }, names[id])));
  };
  const tokens = (run, number) => {
    const place = h("div");
    const open = async () => {
      XP.fill(place, XP.isLive && h("p", { class: "note" }, "The model's tokenizer is being loaded ..."));
      try {
        const found = await XP.tokens(run, number);
        XP.fill(place, h("p", { class: "note" }, found.note),
          h("p", { class: "note" }, h("span", { class: "token trained" }, "trained on"), " ", h("span", { class: "token" }, "masked")),
          h("div", { class: "tokens" }, tokenSpans(found)));
      } catch (error) {
        XP.fill(place, h("p", { class: "warn" }, error.message));
      }
    };
    return { place, open };
  };

  const noTokens = (run) => {
    const place = h("div");
    return { place, open: () => XP.fill(place, h("p", { class: "note" },
      "This page was written without tokens. With them: ", h("code", {}, `python -m xp report ${run.id} --tokens`),
      ", or ", h("code", {}, `python -m xp view ${run.id}`), ".")) };
  };

  const tokenPart = (run, number, found) => {
    if (!found) return null;
    const { place, open } = XP.hasTokens(run) ? tokens(run, number) : noTokens(run);
    return h("details", { ontoggle: (event) => event.target.open && !place.firstChild && open() }, h("summary", {}, "Tokens and mask"), place);
  };

  // The right answer and the hidden state are in no file: the environment is asked for them, where a server can do it.
  const taskPart = (run, number) => {
    const place = h("div");
    const command = h("p", { class: "note" }, "It is in no file of a run. To see it: ", h("code", {}, `python -m xp view ${run.id}`), ".");
    const open = async () => {
      XP.fill(place, XP.isLive ? h("p", { class: "note" }, "The environment is asked ...") : command);
      if (!XP.isLive) return;
      try {
        XP.fill(place, h("pre", { dir: "auto" }, (await XP.ask("task", { run: XP.report.runs.indexOf(run), row: number })).text));
      } catch (error) {
        XP.fill(place, h("p", { class: "warn" }, error.message));
      }
    };
    return h("details", { class: "task-part", ontoggle: (event) => event.target.open && !place.firstChild && open() },
      h("summary", {}, "Right answer and hidden state of the task"), place);
  };

  const column = async (run, number) => {
    const row = XP.row(run, number);
    let found = null;
    try {
      found = await XP.detail(run, number);
    } catch (error) {
      return h("div", { class: "episode" }, head(row, null), h("p", { class: "warn" }, error.message));
    }
    return h("div", { class: "episode" }, head(row, found), !run.is_evaluation && taskPart(run, number), treePart(found), found ? body(run, number, found) : bare(run), tokenPart(run, number, found));
  };

  const show = (title, run, buttons, content) => {
    XP.fill(dialog,
      h("header", { class: "bar" }, h("h2", { id: "dialog-title" }, title), buttons, h("button", { onclick: close, "aria-label": "close" }, "✕")),
      content);
    dialog.setAttribute("aria-labelledby", "dialog-title");
    if (!dialog.open) dialog.showModal();
    dialog.scrollTop = 0;
  };
  const close = () => XP.go({ row: null, task: null, across: null });

  const labelOf = (row) => `${row.task} · ${row.phase}${row.phase.startsWith("evaluate") && !row.step ? "" : ` step ${row.step}`}`;

  // Of a task's training episodes the median one of each step, at most MOST_STEPS that are spread evenly.
  const MOST_STEPS = 24;
  const atSteps = (run, task) => {
    const numbers = XP.atRank(run, XP.choose(run, { phase: "train", task }), 0.5).sort((one, other) => run.episodes.columns.step[one] - run.episodes.columns.step[other]);
    const size = Math.min(MOST_STEPS, numbers.length);
    return Array.from({ length: size }, (_, at) => numbers[Math.round((at * (numbers.length - 1)) / Math.max(1, size - 1))]);
  };

  const showRow = async (run, number) => {
    const row = XP.row(run, number);
    const move = (by) => {
      const place = around.indexOf(number) + by;
      if (around.includes(number) && place >= 0 && place < around.length) XP.go({ row: around[place] });
    };
    const group = XP.choose(run, { phase: row.phase, step: row.step, task: row.task });
    const steps = row.phase === "train" ? atSteps(run, row.task) : [];
    dialog.onkeydown = (event) => {
      if (["INPUT", "SELECT"].includes(event.target.tagName)) return;
      if (event.key === "ArrowLeft") move(-1);
      if (event.key === "ArrowRight") move(1);
    };
    const buttons = [
      h("button", { onclick: () => move(-1), "aria-label": "previous episode" }, "◀"),
      h("button", { onclick: () => move(1), "aria-label": "next episode" }, "▶"),
      group.length > 1 && h("button", { onclick: () => XP.openSide(run, row.task, group) }, `its group of ${group.length}`),
      steps.length > 1 && h("button", { onclick: () => XP.openSide(run, row.task, steps) }, `this task at ${steps.length} steps`),
    ];
    show(labelOf(row), run, buttons, h("div", { class: "sides one" }, await column(run, number)));
  };

  const showSide = async (run, task, numbers) => {
    const rows = numbers.map((number) => XP.row(run, number)).sort((one, other) => one.phase < other.phase ? 1 : one.phase > other.phase ? -1 : one.step - other.step || one.sample - other.sample);
    const hasSteps = new Set(rows.map((row) => row.step)).size > 1;
    const title = (row) => (row.phase.startsWith("evaluate/") ? row.phase.slice(9) : `${hasSteps ? `step ${row.step}, ` : ""}sample ${row.sample}`);
    await showParts(task, rows.map((row) => [title(row), run, row.number]));
  };

  // Episodes of one task side by side: [title, run, number].
  const showParts = async (task, found) => {
    dialog.onkeydown = null;
    const parts = await Promise.all(found.slice(0, 64).map(async ([title, run, number]) =>
      h("div", { class: "side-part" }, h("h3", {}, title), await column(run, number))));
    show(`${task}, side by side`, null, [], h("div", { class: "sides", tabindex: 0 }, parts));
  };

  XP.openRow = (run, number, others) => {
    around = others || [];
    XP.go({ run: XP.report.runs.indexOf(run), row: number, task: null, across: null });
  };
  XP.openSide = (run, task, numbers) => {
    side = { task, numbers };
    XP.go({ run: XP.report.runs.indexOf(run), task, row: null });
  };
  let side = null;
  let open = "";

  XP.onState((state) => {
    const run = XP.report.runs[state.run || 0];
    const key = JSON.stringify([state.run, state.row, state.task, state.across]);
    if (key === open) return;
    open = key;
    if (state.row !== undefined && state.row < XP.count(run)) showRow(run, state.row);
    else if (state.across !== undefined) showParts(state.across, XP.across(state.across));
    else if (state.task !== undefined) {
      const numbers = side?.task === state.task ? side.numbers : XP.choose(run, { phase: state.phase, step: state.step, task: state.task });
      showSide(run, state.task, numbers);
    } else if (dialog.open) dialog.close();
  });
  dialog.addEventListener("cancel", (event) => { event.preventDefault(); close(); });
  dialog.addEventListener("click", (event) => event.target === dialog && close());
})();
