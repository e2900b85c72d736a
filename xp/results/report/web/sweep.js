"use strict";
// A sweep as parallel coordinates: one axis a key that differs, the last one the held-out reward.
(() => {
  const { h, svg } = XP;
  const HEIGHT = 300;
  const TOP = 46;
  const GAP = 170;
  const WIDTH = Math.min(1130, window.innerWidth);
  const SIDE = 90;
  const LOG_FROM = 50;
  const LINE = 12;

  // Places of an axis' values between 0 and 1: numbers linear or, over decades, logarithmic; words in a row.
  const scaleOf = (values) => {
    const known = values.filter((value) => value !== null);
    const numbers = known.map(Number);
    if (known.every((value) => value !== "" && Number.isFinite(Number(value)))) {
      const low = Math.min(...numbers);
      const high = Math.max(...numbers);
      const isLog = low > 0 && high / low >= LOG_FROM;
      const of = (value) => (isLog ? Math.log(value) : value);
      const span = of(high) - of(low) || 1;
      const ticks = [...new Set(numbers)].length <= 6 ? [...new Set(numbers)] : [low, isLog ? Math.sqrt(low * high) : (low + high) / 2, high];
      return { place: (value) => (high === low ? 0.5 : (of(Number(value)) - of(low)) / span), ticks: ticks.map((tick) => [tick, XP.num(tick, 3)]) };
    }
    const words = [...new Set(known)].sort();
    return { place: (value) => (words.length < 2 ? 0.5 : words.indexOf(value) / (words.length - 1)), ticks: words.map((word) => [word, word]) };
  };

  const y = (place) => TOP + (1 - place) * (HEIGHT - TOP - 20);
  let gap = GAP;
  const x = (number) => SIDE + number * gap;
  // The end of a long word says more than its beginning: of `training.learning_rate`, say.
  const short = (text, most) => (text.length > most ? `…${text.slice(1 - most)}` : text);
  // Of labels that would lie over each other, only the first.
  const apart = (ticks, scale) => ticks.reduce((kept, tick) => {
    const isFree = kept.every(([value]) => Math.abs(y(scale.place(value)) - y(scale.place(tick[0]))) >= LINE);
    return isFree ? [...kept, tick] : kept;
  }, []);

  const axis = (one, number) => [
    svg("line", { x1: x(number), x2: x(number), y1: y(1), y2: y(0), class: "axis" }),
    svg("text", { x: x(number), y: 18 + (number % 2) * 14, "text-anchor": "middle", class: "axis-title" }, svg("title", {}, one.title), short(one.title, 22)),
    apart(one.scale.ticks, one.scale).map(([value, label]) => svg("text", { x: x(number) + (one.isLast ? 8 : -8), y: y(one.scale.place(value)) + 4, "text-anchor": one.isLast ? "start" : "end" }, svg("title", {}, label), short(label, 14))),
  ];

  const line = (axes, run, number) => {
    const points = axes.map((one, place) => [x(place), one.values[number] === null ? null : y(one.scale.place(one.values[number]))]);
    const known = points.filter(([, at]) => at !== null);
    const last = axes[axes.length - 1];
    const share = last.values[number] === null ? null : last.scale.place(last.values[number]);
    const open = () => XP.go({ run: number, phase: null, step: null, row: null, task: null });
    const path = svg("path", {
      d: known.map(([left, top], place) => `${place ? "L" : "M"}${left} ${top}`).join(""), class: "point", tabindex: 0, role: "link",
      "aria-label": run.id, onclick: open, onkeydown: (event) => event.key === "Enter" && open(),
    }, svg("title", {}, `${run.id}: ${axes.map((one) => `${one.title} ${XP.num(one.values[number])}`).join(", ")}`));
    path.style.stroke = share === null ? XP.colour("text-soft") : `color-mix(in srgb, ${XP.colour("line-2")} ${Math.round(share * 100)}%, ${XP.colour("line-1")})`;
    return path;
  };

  // Null where there is nothing to see: fewer than three runs, or no key that differs.
  XP.sweepOf = () => {
    const { runs, comparison: { keys, values } } = XP.report;
    if (runs.length < 3 || !keys.length) return null;
    const axes = keys.slice(0, 12).map((title, place) => ({ title, values: values.map((row) => row[place]) }));
    const after = runs.map(XP.resultOf);
    if (after.some((value) => value !== null)) axes.push({ title: "held-out reward after", values: after, isLast: true });
    axes.forEach((one) => { one.scale = scaleOf(one.values); });
    gap = Math.max(GAP, (WIDTH - 2 * SIDE) / Math.max(1, axes.length - 1));
    const width = x(axes.length - 1) + SIDE;
    const figure = svg("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, width, height: HEIGHT, role: "img", "aria-label": "parallel coordinates", class: "parallel" },
      runs.map((run, number) => line(axes, run, number)), axes.map(axis));
    return [
      h("p", { class: "note" }, "A line is a run; green ends higher, orange lower. A click opens the run."),
      h("div", { class: "wide", tabindex: 0 }, figure),
    ];
  };
})();
