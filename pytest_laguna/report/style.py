# SPDX-License-Identifier: Apache-2.0
"""Style sheet of the report, for light and dark.

Colours of series differ also for red-green colour blindness, and none carries a meaning alone. Source of the series'
hues: M. Okabe and K. Ito, Color Universal Design, 2008.
"""

from __future__ import annotations

STYLE = (
    """
:root {
  color-scheme: light dark;
  --paper: #ffffff; --raised: #f5f6f8; --line: #d7dae0; --ink: #1b1f24; --soft: #59616c; --link: #0b57d0;
  --control: #0072b2; --candidate: #c8500a;
  --graph: #7a8694; --attention: #c8500a; --collective: #00785a; --other: #a0559a;
  --PASS: #0a7d46; --STOP: #a15c00; --FAIL: #b3261e; --VOID: #6b3fa0; --NOT_PROVEN: #59616c; --REFUSED: #59616c;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #15181c; --raised: #1e2227; --line: #3a4049; --ink: #e7e9ec; --soft: #a4acb7; --link: #8ab4f8;
    --control: #5ab4e8; --candidate: #ff9a57;
    --graph: #8e99a6; --attention: #ff9a57; --collective: #3fc79a; --other: #d48fce;
    --PASS: #5fd39a; --STOP: #f0b25a; --FAIL: #ff8a80; --VOID: #c3a1f0; --NOT_PROVEN: #a4acb7; --REFUSED: #a4acb7;
  }
}
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem; max-width: 76rem; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
h1 { font-size: 1.6rem; margin: 0 0 .25rem; } h2 { font-size: 1.25rem; margin: 2.2rem 0 .6rem; }
h3 { font-size: 1rem; margin: 1.4rem 0 .4rem; }
p { margin: .4rem 0; max-width: 62rem; } .soft { color: var(--soft); }
a { color: var(--link); } code { font-family: ui-monospace, "DejaVu Sans Mono", monospace; font-size: .87em;
  overflow-wrap: anywhere; }
pre { background: var(--raised); padding: .6rem .8rem; overflow: auto; max-height: 24rem; font-size: .8rem;
  border-radius: 4px; white-space: pre-wrap; }
table { border-collapse: collapse; width: 100%; font-size: .88rem; }
th { text-align: left; font-weight: 600; color: var(--soft); border-bottom: 2px solid var(--line); }
td { border-bottom: 1px solid var(--line); vertical-align: top; }
th, td { padding: .35rem .6rem .35rem 0; } td code { overflow-wrap: break-word; }
.scroll { overflow-x: auto; margin: .6rem 0; }
table.numbers td:not(:first-child), table.numbers th:not(:first-child) { text-align: right;
  font-variant-numeric: tabular-nums; white-space: nowrap; }
table.clauses { table-layout: fixed; min-width: 46rem; } table.clauses td { overflow-wrap: anywhere; }
.clauses > thead th:nth-child(1) { width: 7.5rem; } .clauses > thead th:nth-child(2) { width: 30%; }
.clauses > thead th:nth-child(4) { width: 24%; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1rem; margin: .4rem 0; font-size: .9rem; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
details { margin: .15rem 0; } summary { cursor: pointer; color: var(--link); }
section.attempt { border-top: 2px solid var(--line); margin-top: 2.2rem; }
figure { margin: 1rem 0; } figcaption { color: var(--soft); font-size: .87rem; max-width: 62rem; }
svg { max-width: 100%; height: auto; }
.notice { border-left: 4px solid var(--STOP); background: var(--raised); padding: .5rem .8rem; margin: .7rem 0; }
.verdict { display: inline-block; font-weight: 700; font-size: .85em; padding: .05rem .5rem; border-radius: 3px;
  border: 1.5px solid currentColor; white-space: nowrap; }
.chain { display: flex; flex-wrap: wrap; gap: .6rem; align-items: stretch; margin: .6rem 0; }
.chain > a { flex: 1 1 15rem; text-decoration: none; color: inherit; background: var(--raised); border-radius: 6px;
  padding: .7rem .9rem; border-left: 5px solid currentColor; }
.chain .title { color: var(--soft); font-size: .85rem; } .chain .reason { color: var(--ink); font-size: .9rem; }
"""
    + "".join(
        f".{name} {{ color: var(--{name}); }}\n.chain > a.{name} {{ border-left-color: var(--{name}); }}\n"
        for name in ("PASS", "STOP", "FAIL", "VOID", "NOT_PROVEN", "REFUSED")
    )
    + """
@media screen and (max-width: 48rem) {
  body { padding: 1rem; } figure > div { overflow-x: auto; } figure svg { max-width: none; width: 45rem; }
  table.clauses { min-width: 0; } table.clauses > thead { display: none; }
  table.clauses, .clauses > tbody, .clauses > tbody > tr, .clauses > tbody > tr > td { display: block; }
  .clauses > tbody > tr { border-bottom: 1px solid var(--line); padding: .4rem 0; }
  .clauses > tbody > tr > td { border: 0; padding: .1rem 0; }
}
@media print { body { max-width: none; } details > summary { color: inherit; } section.attempt { break-before: page; } }
"""
)
