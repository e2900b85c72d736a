"use strict";
// Lays the page out, and follows a run that goes on.
(() => {
  const { h } = XP;
  const FOLLOW_MS = 3000;
  let pending = [];

  // Work to be done once the parts are in the page.
  XP.later = (work) => {
    pending.push(work);
    return null;
  };

  const PARTS = [
    ["overview", "Overview", XP.overviewOf],
    ["curves", "Curves", XP.curvesOf],
    ["distribution", "Rewards and tools by step", XP.distributionOf],
    ["held-out", "Held-out tasks before and after", XP.heldOutOf],
    ["episodes", "Episodes", XP.episodesOf],
    ["plan", "Plan and what was measured", XP.planOf],
    ["spec", "Spec", XP.specOf],
  ];

  const runChoice = (number) => XP.report.runs.length > 1 && h("label", {}, "run ",
    h("select", { id: "run", onchange: (event) => XP.go({ run: Number(event.target.value), phase: null, step: null, row: null, task: null, across: null, filter: null, text: null }) },
      XP.report.runs.map((run, place) => h("option", { value: place, selected: place === number }, run.id))));

  const several = () => (XP.report.comparison && XP.comparisonOf ? XP.comparisonOf() : []);

  const layOut = (number) => {
    const run = XP.report.runs[number];
    const num = XP.report.runs.filter((one) => one.is_evaluation).length;
    const what = num === 0 ? "runs" : num === XP.report.runs.length ? "evaluations" : "runs and evaluations";
    XP.forgetCharts();
    pending = [];
    XP.fill(document.getElementById("head"),
      XP.report.has_start && h("p", { class: "note" }, h("a", { href: "/" }, "◀ all runs")),
      h("h1", {}, XP.report.comparison ? `${XP.report.runs.length} ${what}` : run.id),
      h("p", {}, XP.badge(run.status, run.status), " ", run.title), runChoice(number),
      h("p", { class: "note" }, `made ${XP.report.made} by xp ${XP.report.xp}`, XP.isLive && run.status === "running" && ", following"));
    const extra = several();
    // An evaluation has no training.
    const parts = PARTS.filter(([id]) => run.stages.length || ["overview", "episodes", "spec"].includes(id));
    const sections = parts.map(([id, title, make]) => XP.section(id, title, make(run)));
    XP.fill(document.getElementById("nav"), [...extra.map(({ id, title }) => [id, title]), ...parts].map(([id, title]) =>
      h("button", { onclick: () => document.getElementById(id).scrollIntoView() }, title.split(" ")[0])));
    XP.fill(document.getElementById("main"), extra.map((one) => one.element), sections);
    pending.forEach((work) => work());
  };

  let laid = -1;
  XP.onState((state) => {
    const number = Math.min(state.run || 0, XP.report.runs.length - 1);
    if (number !== laid) layOut(laid = number);
  });

  const follow = async () => {
    const goesOn = XP.report.runs.map((run, place) => [run, place]).filter(([run]) => run.status === "running");
    for (const [run, place] of goesOn) {
      try {
        XP.merge(place, await XP.ask("run", { run: place, rows_from: XP.count(run) }));
      } catch (error) {
        console.warn(`not followed: ${error.message}`);
      }
    }
    const isReading = document.getElementById("dialog").open || ["INPUT", "SELECT"].includes(document.activeElement?.tagName);
    if (goesOn.length && !isReading) {
      const top = window.scrollY;
      layOut(laid);
      window.scrollTo(0, top);
    }
    if (goesOn.length) setTimeout(follow, FOLLOW_MS);
  };

  if (XP.report.list) XP.startPage();
  else {
    XP.start();
    if (XP.isLive) setTimeout(follow, FOLLOW_MS);
  }
})();
