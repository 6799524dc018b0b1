// How Sphinx's search ranks what it finds: its own figures, with the pages that answer no user's question last.
var Scorer = {
  score: ([docname, , , , score]) => (/^(docs\/decisions\/|benchmarks\/|CHANGELOG|CONTRIBUTING)/.test(docname) ? score - 100 : score),
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
