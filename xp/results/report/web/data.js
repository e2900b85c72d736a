"use strict";
// The report's data: figures of all episodes as columns, texts in compressed chunks or from the page's own server.
(() => {
  XP.report = JSON.parse(document.getElementById("report").textContent);
  XP.isLive = XP.report.live;
  const kept = new Map();

  XP.title = (metric) => XP.report.titles[metric] || metric;
  XP.count = (run) => run.episodes.columns.step.length;
  const NAMED = ["phase", "env", "split", "status"];

  // One episode's figures, with names in place of their positions.
  XP.row = (run, number) => {
    const found = { number };
    for (const [name, column] of Object.entries(run.episodes.columns)) {
      found[name] = NAMED.includes(name) ? run.episodes.names[name][column[number]] : column[number];
    }
    found.task = `${found.env}/${found.split}/${found.task_index}`;
    return found;
  };
  XP.hasText = (run, number) => XP.isLive || run.episodes.columns.chunk[number] >= 0;

  // Phase and step -> the attempt that played it last. Its episodes are those that counted.
  XP.lastAttempts = (run) => {
    const { phase, step, attempt } = run.episodes.columns;
    const found = new Map();
    for (let number = 0; number < step.length; number++) {
      const key = `${phase[number]} ${step[number]}`;
      if (!(found.get(key) > attempt[number])) found.set(key, attempt[number]);
    }
    return found;
  };

  // Numbers of the episodes that pass `{phase, step, status, task, isMalformed}`, of the attempts that counted.
  XP.choose = (run, wanted) => {
    const { columns, names } = run.episodes;
    const last = XP.lastAttempts(run);
    const phase = wanted.phase === undefined ? -1 : names.phase.indexOf(wanted.phase);
    const status = wanted.status === undefined ? -1 : names.status.indexOf(wanted.status);
    const found = [];
    for (let number = 0; number < columns.step.length; number++) {
      if (wanted.phase !== undefined && columns.phase[number] !== phase) continue;
      if (wanted.step !== undefined && columns.step[number] !== wanted.step) continue;
      if (wanted.status !== undefined && columns.status[number] !== status) continue;
      if (wanted.isMalformed && !columns.malformed[number]) continue;
      if (last.get(`${columns.phase[number]} ${columns.step[number]}`) !== columns.attempt[number]) continue;
      if (wanted.task !== undefined && XP.row(run, number).task !== wanted.task) continue;
      found.push(number);
    }
    return found;
  };

  // Of each step the episode at a place of the ranking: 0 the worst, 0.5 the median, 1 the best.
  XP.atRank = (run, numbers, place) => {
    const { reward, step, phase } = run.episodes.columns;
    const groups = new Map();
    for (const number of numbers) {
      if (reward[number] === null) continue;
      const key = `${phase[number]} ${step[number]}`;
      if (!groups.has(key)) groups.set(key, []);
      groups.get(key).push(number);
    }
    return [...groups.values()].map((group) => {
      group.sort((one, other) => reward[one] - reward[other] || one - other);
      return group[Math.min(group.length - 1, Math.floor(place * group.length))];
    });
  };

  XP.ask = async (path, parameters) => {
    const names = (XP.report.names || []).map((name) => ["name", name]);
    const query = new URLSearchParams([...names, ...Object.entries(parameters)]);
    const answer = await fetch(`api/${path}?${query}`, { cache: "no-store" });
    if (!answer.ok) throw new Error(await answer.text());
    return answer.json();
  };

  const unpack = async (element) => {
    const packed = Uint8Array.from(atob(element.textContent), (character) => character.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
    return JSON.parse(await new Response(stream).text());
  };
  const chunk = (run, place, kind = "chunk") => {
    const id = `${kind}-${XP.report.runs.indexOf(run)}-${place}`;
    if (!kept.has(id)) kept.set(id, unpack(document.getElementById(id)));
    return kept.get(id);
  };

  // An episode's messages and calls; null where the page does not hold them.
  XP.detail = async (run, number, isWhole = false) => {
    if (XP.isLive) {
      return XP.ask("episode", { run: XP.report.runs.indexOf(run), row: number, whole: isWhole ? 1 : 0 });
    }
    const place = run.episodes.columns.chunk[number];
    return place < 0 ? null : (await chunk(run, place))[number];
  };

  // An episode's tokens: {ids, stretches, names, note}; null where the page does not hold them.
  XP.hasTokens = (run) => XP.isLive || document.getElementById(`tokens-${XP.report.runs.indexOf(run)}-names`) !== null;
  XP.tokens = async (run, number) => {
    if (XP.isLive) return XP.ask("tokens", { run: XP.report.runs.indexOf(run), row: number });
    const found = await chunk(run, run.episodes.columns.chunk[number], "tokens");
    return { ...found[number], names: await chunk(run, "names", "tokens") };
  };

  const saysIn = (found, text) =>
    found.messages.some((message) => message.content.toLowerCase().includes(text)) ||
    (found.void_reason || "").toLowerCase().includes(text);

  // Those of some episodes that hold a text, among those whose text is at hand.
  XP.search = async (run, numbers, text) => {
    if (XP.isLive) {
      const found = await XP.ask("search", { run: XP.report.runs.indexOf(run), text });
      const all = new Set(found.rows);
      return numbers.filter((number) => all.has(number));
    }
    const wanted = text.toLowerCase();
    const found = [];
    for (const number of numbers) {
      const one = await XP.detail(run, number);
      if (one !== null && saysIn(one, wanted)) found.push(number);
    }
    return found;
  };

  // Takes newer data of a run that goes on: everything anew but the episodes, of which only the new ones came.
  XP.merge = (place, fresh) => {
    const old = XP.report.runs[place];
    const columns = old.episodes.columns;
    for (const [name, column] of Object.entries(fresh.episodes.columns)) {
      columns[name] = columns[name].slice(0, fresh.episodes.from).concat(column);
    }
    Object.assign(old, fresh, { episodes: { ...fresh.episodes, from: 0, columns } });
  };
})();
